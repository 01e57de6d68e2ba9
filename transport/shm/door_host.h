// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The publisher's side of the door: a Unix socket (SOCK_SEQPACKET) that hands the descriptors of slabs to subscribers
/// of the same user, and notices when one is gone. The kernel closes a dead process's end, so an open door means a
/// reader that may still read, also one that is stopped.

#include <fcntl.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/arena/slab.h"
#include "core/base/file_descriptor.h"
#include "core/base/fork_guard.h"
#include "core/base/result.h"
#include "transport/shm/door_frame.h"

namespace freshet::shm {

using freshet::SlabReference;
/// The slabs of one arena, by index. Grows only; the door reads it whenever it sends.
using SlabList = std::vector<SlabReference>;

/// Owned by its loop thread. Never blocks.
class DoorHost {
 public:
  using DoorId = std::uint64_t;

  /// Listens at `path`, which appears only once it is listened at.
  static Result<std::unique_ptr<DoorHost>> open(const std::string& path);
  ~DoorHost();
  /// Listens again at the same path where somebody removed its file: true. Who was let in stays.
  Result<bool> tend();

  /// Readable when poll() has something to do.
  int descriptor() const { return epoll_.get(); }

  struct Knocked {
    DoorId door = 0;
    Knock knock;
  };
  struct Events {
    std::vector<Knocked> knocked;             ///< Each to be answered with admit() or turn_away().
    std::vector<protocol::SessionId> closed;  ///< Admitted ones whose peer is gone.
  };
  Events poll();

  /// Lets the session in and sends it what is in `slabs`, which must live until the door is closed. So must
  /// `device_slabs`; they are sent from lend_device_slabs() on.
  void admit(DoorId door, protocol::SessionId session, std::shared_ptr<const SlabList> slabs,
             std::shared_ptr<const SlabList> device_slabs = nullptr);
  void turn_away(DoorId door);

  /// The session was granted a version in device memory.
  void lend_device_slabs(protocol::SessionId session);

  /// Sends what was added to the session's list since.
  void send_new_slabs(protocol::SessionId session);
  void send_new_slabs();  ///< To all.
  void close(protocol::SessionId session);
  void close_all_of(const std::shared_ptr<shm::SlabList>& slabs);

  std::size_t admitted() const { return sessions_.size(); }

 private:
  enum class Sent : std::uint8_t { all, would_block, gone };
  struct Door {
    ParentsDescriptor socket;  ///< In a child of this process it would stay open for a publisher that died.
    bool knocked = false;
    protocol::SessionId session = 0;
    std::shared_ptr<const SlabList> slabs;  ///< Set when admitted.
    std::shared_ptr<const SlabList> device_slabs;
    std::size_t slabs_sent = 0;
    std::size_t device_slabs_sent = 0;
    bool takes_device_slabs = false;
    bool welcomed = false;  ///< The first frame is out.
    bool waits_for_room = false;
  };

  DoorHost(std::string path, ParentsDescriptor listener, FileDescriptor epoll)
      : path_(std::move(path)),
        listener_(std::move(listener)),
        epoll_(std::move(epoll)),
        spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {}
  static Sent send_frame(int socket, const SlabFrame& frame, const std::vector<int>& descriptors);
  static Result<ParentsDescriptor> listen_at(const std::string& path);
  static Status watch(const FileDescriptor& epoll, const ParentsDescriptor& listener, const std::string& path);
  void accept_all();
  /// False when there was none, or no descriptor is left even for that.
  bool turn_one_away();
  /// False when the peer is gone.
  bool read(DoorId id, Door& door, Events& events);
  bool send_pending(DoorId id, Door& door);
  Sent send_next(Door& door, bool is_on_device);
  void watch_for_room(DoorId id, Door& door, bool wanted);
  void forget(DoorId id, Events* events);

  std::string path_;
  ParentsDescriptor listener_;
  FileDescriptor epoll_;
  FileDescriptor spare_;  ///< Given up for a moment when the process has no other.
  DoorId next_door_ = 1;  ///< 0 is the listener.
  std::map<DoorId, Door> doors_;
  std::map<protocol::SessionId, DoorId> sessions_;
};

}  // namespace freshet::shm
