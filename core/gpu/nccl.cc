// SPDX-License-Identifier: Apache-2.0
// The collective over NCCL.

#include <dlfcn.h>

#include <chrono>
#include <utility>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/gpu/collective.h"
#include "core/gpu/device.h"
#include "core/gpu/driver.h"
#include "core/gpu/nccl.h"

namespace freshet::gpu {
namespace {

Result<nccl::Library> load_nccl(const std::string& name) {
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == nullptr) {
    const char* const why = ::dlerror();
    return fail(Code::unavailable, format("open NCCL: no {} here ({})", name, why == nullptr ? "" : why));
  }
  nccl::Library library;
#define FRESHET_NCCL_RESOLVE(function, ...)                                                                \
  library.function = reinterpret_cast<decltype(library.function)>(::dlsym(handle, #function));             \
  if (library.function == nullptr) {                                                                       \
    return fail(Code::unavailable,                                                                         \
                format("open NCCL: {} has no function " #function "; Freshet needs 2.23 or later", name)); \
  }
  FRESHET_NCCL_FUNCTIONS(FRESHET_NCCL_RESOLVE)
  FRESHET_NCCL_RESOLVE(ncclGetErrorString)
#undef FRESHET_NCCL_RESOLVE
  if (library.ncclGetVersion(&library.version) != nccl::kSuccess || library.version < nccl::kVersionMin) {
    return fail(Code::unavailable,
                format("open NCCL: {} has version {}; Freshet needs 2.23 or later (22300)", name, library.version));
  }
  return library;
}

Status nccl_status(const nccl::Library& library, std::string_view call, nccl::Answer answer) {
  if (answer == nccl::kSuccess || answer == nccl::kInProgress) return {};
  return fail(Code::unavailable, format("{}: {}", call, shown(library.ncclGetErrorString(answer))));
}

/// What all communicators share. Immutable.
struct NcclWorld {
  nccl::Library library;
  driver::Driver driver;
  driver::Ordinal ordinal = 0;
  driver::Context context = nullptr;  ///< The device's primary one, which `device` keeps.
  std::shared_ptr<Device> device;
};

/// While it lives, NCCL's calls of this thread are for the device, and spoil no CUDA graph. NCCL's own threads keep
/// their own mode.
class NcclContext {
 public:
  explicit NcclContext(const NcclWorld& world)
      : world_(world),
        relaxed_(world.driver.calls),
        pushed_(world.driver.calls.cuCtxPushCurrent_v2(world.context) == driver::kSuccess) {}
  ~NcclContext() {
    driver::Context popped = nullptr;
    if (pushed_) (void)world_.driver.calls.cuCtxPopCurrent_v2(&popped);
  }
  NcclContext(const NcclContext&) = delete;
  NcclContext& operator=(const NcclContext&) = delete;

 private:
  const NcclWorld& world_;
  const driver::RelaxedCapture relaxed_;
  const bool pushed_;
};

/// Bytes go through device memory of ours: a copy there, the call, and a copy back where something was received.
class NcclCommunicator final : public Communicator {
 public:
  explicit NcclCommunicator(std::shared_ptr<const NcclWorld> world) : world_(std::move(world)) {}
  ~NcclCommunicator() override { abort(); }

  Status start(const CollectiveSeat& seat) {
    rank_ = seat.rank;
    FRESHET_ASSIGN(stream_, world_->device->create_stream());
    FRESHET_ASSIGN(event_, world_->device->create_event());
    FRESHET_ASSIGN(staging_, world_->device->allocate(kCollectiveBytesMax));
    nccl::Config config;
    const NcclContext context(*world_);
    return nccl_status(
        world_->library, "ncclCommInitRankConfig",
        world_->library.ncclCommInitRankConfig(&object_, seat.ranks, nccl::Id{seat.id.bytes}, seat.rank, &config));
  }

  Status broadcast(MutableBytes bytes) override {
    return begin("ncclBroadcast", bytes, rank_ == 0 ? Way::out : Way::in, [&] {
      return world_->library.ncclBroadcast(staging_.address(), staging_.address(), bytes.size(), nccl::kBytes, 0,
                                           object_, stream());
    });
  }
  Status send(Bytes bytes, int rank) override {
    return begin("ncclSend", {const_cast<std::byte*>(bytes.data()), bytes.size()}, Way::out, [&] {
      return world_->library.ncclSend(staging_.address(), bytes.size(), nccl::kBytes, rank, object_, stream());
    });
  }
  Status receive(MutableBytes bytes, int rank) override {
    return begin("ncclRecv", bytes, Way::in, [&] {
      return world_->library.ncclRecv(staging_.address(), bytes.size(), nccl::kBytes, rank, object_, stream());
    });
  }

  Result<bool> poll() override {
    if (is_queued_) {
      // First: a peer that leaves after the call takes nothing back.
      FRESHET_ASSIGN(const bool is_done, world_->device->is_done(event_));
      if (is_done) return copy_back();
    }
    // Also while the call runs: it tells of a peer whose connection broke.
    nccl::Answer answer = nccl::kSuccess;
    {
      const NcclContext context(*world_);
      FRESHET_TRY(nccl_status(world_->library, "ncclCommGetAsyncError",
                              world_->library.ncclCommGetAsyncError(object_, &answer)));
    }
    FRESHET_TRY(nccl_status(world_->library, "NCCL", answer));
    // Before NCCL says that it is not in progress, the stream may not have the call.
    if (is_queued_ || answer == nccl::kInProgress) return false;
    FRESHET_TRY(world_->device->record(event_, stream_.handle()));
    is_queued_ = true;
    FRESHET_ASSIGN(const bool is_done, world_->device->is_done(event_));
    return is_done ? copy_back() : Result<bool>(false);
  }

  void abort() override {
    if (object_ == nullptr) return;
    const NcclContext context(*world_);
    (void)world_->library.ncclCommAbort(std::exchange(object_, nullptr));
    // The copy back, if there is one, still writes the caller's bytes.
    (void)world_->device->record(event_, stream_.handle());
    (void)world_->device->wait(event_, std::chrono::seconds(10));
  }

 private:
  enum class Way : std::uint8_t { in, out };

  driver::StreamObject stream() const { return static_cast<driver::StreamObject>(stream_.handle().native); }

  /// What was received, once. When the call has ended, and no earlier: a copy to memory that the driver does not know
  /// returns when the stream has come to it, and a call whose peer died never ends by itself. Whether all is there.
  Result<bool> copy_back() {
    if (received_.empty()) return true;
    const MutableBytes to = std::exchange(received_, {});
    FRESHET_TRY(world_->device->copy(stream_.handle(), to.data(), staging_.address(), to.size()));
    FRESHET_TRY(world_->device->record(event_, stream_.handle()));
    return world_->device->is_done(event_);
  }

  template <typename Call>
  Status begin(std::string_view name, MutableBytes bytes, Way way, Call call) {
    if (bytes.size() > kCollectiveBytesMax) return refuse(format("{} bytes at once", bytes.size()));
    received_ = way == Way::in ? bytes : MutableBytes();
    is_queued_ = false;
    if (way == Way::out) {
      FRESHET_TRY(world_->device->copy(stream_.handle(), staging_.address(), bytes.data(), bytes.size()));
    }
    const NcclContext context(*world_);
    return nccl_status(world_->library, name, call());
  }

  const std::shared_ptr<const NcclWorld> world_;
  int rank_ = 0;
  Memory staging_;
  Stream stream_;
  Event event_;
  nccl::Object object_ = nullptr;
  MutableBytes received_;   ///< Where the staged bytes go, once they are there.
  bool is_queued_ = false;  ///< The stream has the call, and the event is behind it.
};

class NcclCollective final : public Collective {
 public:
  explicit NcclCollective(std::shared_ptr<const NcclWorld> world) : world_(std::move(world)) {}
  ~NcclCollective() override = default;

  Result<CollectiveId> make_id() override {
    nccl::Id id{};
    const NcclContext context(*world_);
    FRESHET_TRY(nccl_status(world_->library, "ncclGetUniqueId", world_->library.ncclGetUniqueId(&id)));
    return CollectiveId{id.bytes};
  }
  Result<std::unique_ptr<Communicator>> join(const CollectiveSeat& seat) override {
    auto communicator = std::make_unique<NcclCommunicator>(world_);
    FRESHET_TRY(communicator->start(seat));
    return std::unique_ptr<Communicator>(std::move(communicator));
  }

 private:
  const std::shared_ptr<const NcclWorld> world_;
};

}  // namespace

Result<std::string> nccl_version(const std::string& library) {
  FRESHET_ASSIGN(const nccl::Library opened, load_nccl(library));
  return format("NCCL {}.{}.{}", opened.version / 10000, opened.version % 10000 / 100, opened.version % 100);
}

Result<std::shared_ptr<Collective>> open_nccl() {
  auto world = std::make_shared<NcclWorld>();
  FRESHET_ASSIGN(world->library, load_nccl("libnccl.so.2"));
  FRESHET_ASSIGN(world->driver, driver::open_driver());
  FRESHET_ASSIGN(const auto platform, open_driver_platform());
  FRESHET_ASSIGN(const auto devices, platform->devices());
  FRESHET_ASSIGN(world->device, platform->open(devices.front().uuid));
  const driver::Functions& calls = world->driver.calls;
  if (const driver::Answer answer = calls.cuDeviceGet(&world->ordinal, 0); answer != driver::kSuccess) {
    return driver::fail_answer(calls, "cuDeviceGet", answer);
  }
  // Given back at once: the device has it for as long as the world lives.
  if (const driver::Answer answer = calls.cuDevicePrimaryCtxRetain(&world->context, world->ordinal);
      answer != driver::kSuccess) {
    return driver::fail_answer(calls, "cuDevicePrimaryCtxRetain", answer);
  }
  (void)calls.cuDevicePrimaryCtxRelease_v2(world->ordinal);
  return std::shared_ptr<Collective>(std::make_shared<NcclCollective>(std::move(world)));
}

}  // namespace freshet::gpu
