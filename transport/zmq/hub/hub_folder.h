// SPDX-License-Identifier: Apache-2.0
#pragma once

/// What a hub has in the directory's folder: put back when somebody removed it, at logout or with old files, and told
/// of. What dead hubs left there goes. The hub's thread.

#include <functional>
#include <string>

#include "transport/directory/directory.h"
#include "transport/shm/door_host.h"
#include "transport/zmq/hub/control_socket.h"

namespace freshet {

class HubFolder {
 public:
  struct Files {
    std::string door;
    std::string control;
  };
  /// Names that nobody in `folder` uses. Removes on the way what hubs left that died without cleaning up: theirs are
  /// the doors that refuse a connection.
  static Result<Files> choose(const std::string& folder);

  /// Looks once a second. `tend_models`: the same for what its models have there.
  void tend(Time now, Directory& directory, shm::DoorHost& door, ControlSocket& control,
            const std::function<Result<bool>()>& tend_models);

 private:
  void tell(const std::string& folder, const Result<bool>& tended);

  Time tend_at_{};
  std::string told_;  ///< The error that was told last.
};

}  // namespace freshet
