// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/host_device.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "core/base/bytes.h"
#include "core/base/format.h"
#include "core/gpu/host_world.h"

namespace freshet::gpu {
namespace {

constexpr std::uint64_t kHostPage = 4096;
constexpr std::uint64_t kDirtyBytesMax = std::uint64_t{1} << 20;
constexpr int kBlockSeals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL;

DeviceInfo host_info(std::size_t ordinal, const HostOptions& options) {
  return {.uuid = host_device_uuid(ordinal),
          .name = "Freshet's host device",
          .bytes = options.bytes,
          .compute_major = options.compute_major,
          .compute_minor = 0,
          .granularity = kHostPage,
          .exports_slabs = true,
          .registers_read_only = options.registers_read_only,
          .kernels_reach_host = options.kernels_reach_host};
}

/// What the memfds of a device are called. So an importer tells them from other memfds, and from another device's.
std::string block_name(const Uuid& uuid) { return "freshet-gpu-" + uuid.text(); }

std::string link_of(int descriptor) {
  std::array<char, 256> link{};
  const ssize_t length = ::readlink(format("/proc/self/fd/{}", descriptor).c_str(), link.data(), link.size());
  return length < 0 ? std::string() : std::string(link.data(), static_cast<std::size_t>(length));
}

/// Maps a memfd with a page behind it that nobody may touch.
Result<std::byte*> map_block(int descriptor, std::uint64_t bytes, int protection) {
  void* const room = ::mmap(nullptr, bytes + kHostPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return fail_errno(errno, "mmap");
  if (::mmap(room, bytes, protection, MAP_SHARED | MAP_FIXED, descriptor, 0) == MAP_FAILED) {
    const int error = errno;
    ::munmap(room, bytes + kHostPage);
    return fail_errno(error, "mmap");
  }
  return static_cast<std::byte*>(room);
}

/// Whether all pages of the range are mapped readable, and writable if need be, as the kernel tells it.
bool is_mapped(std::uintptr_t begin, std::uint64_t bytes, bool writable) {
  std::ifstream maps("/proc/self/maps");
  std::uintptr_t at = begin;
  for (std::string line; at < begin + bytes && std::getline(maps, line);) {
    std::istringstream words(line);
    std::uintptr_t from = 0;
    std::uintptr_t to = 0;
    char dash = 0;
    std::string rights;
    words >> std::hex >> from >> dash >> to >> rights;
    if (to <= at) continue;
    if (from > at || rights.size() < 2 || rights[0] != 'r' || (writable && rights[1] != 'w')) return false;
    at = to;
  }
  return at >= begin + bytes;
}

class HostEngine final : public Engine {
 public:
  HostEngine(std::shared_ptr<host_detail::World> world, std::size_t device)
      : world_(std::move(world)), device_(device), info_(host_info(device, world_->options())) {}

  const DeviceInfo& info() const override { return info_; }
  bool is_stuck() const override { return !world_->why_stuck(device_).empty(); }

  Result<Room> room() override {
    FRESHET_TRY(check());
    return Room{.free = info_.bytes - world_->used(device_), .total = info_.bytes};
  }

  Result<PointerInfo> describe(const void* address) override {
    FRESHET_TRY(check());
    const auto known = world_->find(address);
    if (!known) return PointerInfo{};
    if (!known->is_block) return PointerInfo{.kind = MemoryKind::pinned, .device = std::nullopt};
    return PointerInfo{.kind = MemoryKind::device, .device = host_device_uuid(known->device)};
  }

  Result<Block> create_block(std::uint64_t bytes) override {
    FRESHET_TRY(check());
    FRESHET_TRY(world_->take_room(device_, bytes));
    auto block = make_block(bytes);
    if (!block) world_->give_room(device_, bytes);
    return block;
  }

  Result<FileDescriptor> export_block(const Block& block) override {
    FRESHET_TRY(check());
    FileDescriptor copy(::fcntl(static_cast<int>(block.native), F_DUPFD_CLOEXEC, 0));
    if (!copy) return fail_errno(errno, "export: dup");
    return copy;
  }

  Result<Block> import_block(FileDescriptor descriptor, std::uint64_t bytes) override {
    FRESHET_TRY(check());
    const std::string link = link_of(descriptor.get());
    struct stat status {};
    if (::fstat(descriptor.get(), &status) != 0 || !link.starts_with("/memfd:freshet-gpu-") ||
        ::fcntl(descriptor.get(), F_GET_SEALS) != kBlockSeals) {
      return fail(Code::corrupt, "HOST_ERROR_INVALID_VALUE: the descriptor is no slab of device memory");
    }
    if (!link.starts_with("/memfd:" + block_name(info_.uuid))) {
      return fail(Code::unsupported, "the slab lies on another device");
    }
    if (static_cast<std::uint64_t>(status.st_size) < bytes) {
      return fail(Code::corrupt,
                  format("HOST_ERROR_INVALID_VALUE: {} bytes promised, {} there", bytes, status.st_size));
    }
    FRESHET_ASSIGN(std::byte* const address, map_block(descriptor.get(), bytes, PROT_READ));
    FRESHET_TRY(world_->add(address, {.bytes = bytes, .device = device_, .writable = false, .is_block = true}));
    return Block{.address = address, .bytes = bytes, .native = static_cast<std::uint64_t>(descriptor.release())};
  }

  Status destroy_block(const Block& block) override {
    FRESHET_ASSIGN(const host_detail::Known known, world_->remove(block.address, true));
    ::munmap(block.address, block.bytes + kHostPage);
    ::close(static_cast<int>(block.native));
    if (known.writable) world_->give_room(device_, block.bytes);
    return {};
  }

  Status register_host(const void* address, std::uint64_t bytes, HostAccess access) override {
    FRESHET_TRY(check());
    if (!world_->options().registers) return fail(Code::unsupported, "HOST_ERROR_NOT_SUPPORTED: it registers nothing");
    const bool writable = access == HostAccess::read_write;
    if (!is_mapped(reinterpret_cast<std::uintptr_t>(address), bytes, writable)) {
      return refuse("HOST_ERROR_INVALID_VALUE: the pages are not there, or cannot be written");
    }
    return world_->add(address, {.bytes = bytes, .device = device_, .writable = writable, .is_block = false});
  }

  Status unregister_host(const void* address) override {
    FRESHET_TRY(check());
    FRESHET_TRY(world_->remove(address, false));
    return {};
  }

  Result<StreamHandle> create_stream() override {
    FRESHET_TRY(check());
    return world_->add_stream(device_);
  }
  Status destroy_stream(StreamHandle stream) override { return world_->remove_stream(stream); }
  Result<EventHandle> create_event() override {
    FRESHET_TRY(check());
    return world_->add_event(device_);
  }
  Status destroy_event(EventHandle event) override { return world_->remove_event(event); }

  Result<bool> is_capturing(StreamHandle stream) override {
    FRESHET_TRY(check());
    return world_->is_capturing(device_, stream);
  }

  Status record(EventHandle event, StreamHandle stream) override {
    FRESHET_TRY(check());
    return world_->record(device_, event, stream);
  }

  Result<bool> is_done(EventHandle event) override {
    FRESHET_TRY(check());
    FRESHET_ASSIGN(const bool done, world_->is_done(event));
    FRESHET_TRY(check());  // The turns meanwhile may have found the error.
    return done;
  }

  Status make_wait(StreamHandle stream, EventHandle event) override {
    FRESHET_TRY(check());
    return world_->make_wait(device_, stream, event);
  }

  Status copy(StreamHandle stream, std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    FRESHET_TRY(check());
    return world_->copy(device_, stream, to, from, bytes);
  }

  Status launch(StreamHandle stream, const Launch& launch, std::span<const std::byte> arguments) override {
    FRESHET_TRY(check());
    return world_->launch(device_, stream, {.launch = launch, .arguments = {arguments.begin(), arguments.end()}});
  }

  Status unload() override { return check(); }

 private:
  Status check() const {
    if (std::string why = world_->why_stuck(device_); !why.empty())
      return fail(Code::failed_precondition, std::move(why));
    return {};
  }

  Result<Block> make_block(std::uint64_t bytes) {
    FileDescriptor memory(::memfd_create(block_name(info_.uuid).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory) return fail_errno(errno, "memfd_create");
    if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) return fail_errno(errno, "size the memory");
    if (::fcntl(memory.get(), F_ADD_SEALS, kBlockSeals) != 0) return fail_errno(errno, "seal the memory");
    FRESHET_ASSIGN(std::byte* const address, map_block(memory.get(), bytes, PROT_READ | PROT_WRITE));
    // Nobody may take new memory for zeros.
    std::memset(address, 0xa5, std::min(bytes, kDirtyBytesMax));
    FRESHET_TRY(world_->add(address, {.bytes = bytes, .device = device_, .writable = true, .is_block = true}));
    return Block{.address = address, .bytes = bytes, .native = static_cast<std::uint64_t>(memory.release())};
  }

  const std::shared_ptr<host_detail::World> world_;
  const std::size_t device_;
  const DeviceInfo info_;
};

}  // namespace

Uuid host_device_uuid(std::size_t ordinal) {
  Uuid uuid{{'f', 'r', 'e', 's', 'h', 'e', 't', 0x80, 'h', 'o', 's', 't'}};
  store_little_endian(reinterpret_cast<std::byte*>(uuid.bytes.data() + 12), static_cast<std::uint32_t>(ordinal));
  return uuid;
}

HostPlatform::HostPlatform(const HostOptions& options) : world_(std::make_shared<host_detail::World>(options)) {}
HostPlatform::~HostPlatform() = default;

std::string HostPlatform::description() const { return format("host device, seed {}", world_->options().seed); }

Result<std::vector<DeviceInfo>> HostPlatform::devices() {
  std::vector<DeviceInfo> devices;
  for (std::size_t i = 0; i < world_->options().devices; ++i) devices.push_back(host_info(i, world_->options()));
  return devices;
}

Result<std::shared_ptr<Device>> HostPlatform::open(const Uuid& uuid) {
  for (std::size_t i = 0; i < world_->options().devices; ++i) {
    if (host_device_uuid(i) == uuid) return Device::make(std::make_unique<HostEngine>(world_, i));
  }
  FRESHET_ASSIGN(const auto all, devices());
  return fail_unknown_device(uuid, all);
}

void HostPlatform::hold(bool is_held) { world_->hold(is_held); }

void HostPlatform::capture(StreamHandle stream, bool is_captured) { world_->capture(stream, is_captured); }

void HostPlatform::strike(std::size_t ordinal) { world_->strike(ordinal); }

std::uint64_t HostPlatform::turns() const { return world_->counts().turns; }

std::uint64_t HostPlatform::bytes_to_host() const { return world_->counts().bytes_to_host; }

std::uint64_t HostPlatform::bytes_to_device() const { return world_->counts().bytes_to_device; }

}  // namespace freshet::gpu
