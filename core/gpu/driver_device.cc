// SPDX-License-Identifier: Apache-2.0
// The engine that calls the NVIDIA driver, and its platform.

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/gpu/device.h"
#include "core/gpu/driver.h"

namespace freshet::gpu {
namespace {

using driver::Answer;
using driver::Driver;

driver::Address device_address(const void* address) { return reinterpret_cast<driver::Address>(address); }
driver::StreamObject native_of(StreamHandle stream) { return static_cast<driver::StreamObject>(stream.native); }
driver::EventObject native_of(EventHandle event) { return static_cast<driver::EventObject>(event.native); }

Status answer_of(const Driver& nvidia, std::string_view call, Answer answer) {
  if (answer == driver::kSuccess) return {};
  return driver::fail_answer(nvidia.calls, call, answer);
}

/// FRESHET_TRY_DRIVER(nvidia, cuMemUnmap, (address, bytes)): calls, and returns the error if there is one.
#define FRESHET_TRY_DRIVER(nvidia, name, arguments) FRESHET_TRY(answer_of(nvidia, #name, (nvidia).calls.name arguments))

Result<Uuid> uuid_of(const Driver& nvidia, driver::Ordinal device) {
  driver::UuidBytes bytes{};
  FRESHET_TRY_DRIVER(nvidia, cuDeviceGetUuid_v2, (&bytes, device));
  Uuid uuid;
  std::memcpy(uuid.bytes.data(), bytes.bytes, uuid.bytes.size());
  return uuid;
}

driver::AllocationProperties properties_of(driver::Ordinal device, bool exports) {
  return {.type = driver::kAllocationTypePinned,
          .handle_types = exports ? driver::kHandleTypeDescriptor : 0,
          .location = {.type = driver::kLocationTypeDevice, .id = device}};
}

Result<int> attribute_of(const Driver& nvidia, driver::Ordinal device, unsigned int attribute) {
  int value = 0;
  FRESHET_TRY_DRIVER(nvidia, cuDeviceGetAttribute, (&value, attribute, device));
  return value;
}

Result<DeviceInfo> info_of(const Driver& nvidia, driver::Ordinal device) {
  DeviceInfo info;
  FRESHET_ASSIGN(info.uuid, uuid_of(nvidia, device));
  std::array<char, 256> name{};
  FRESHET_TRY_DRIVER(nvidia, cuDeviceGetName, (name.data(), static_cast<int>(name.size()) - 1, device));
  info.name = shown(name.data());
  std::size_t bytes = 0;
  FRESHET_TRY_DRIVER(nvidia, cuDeviceTotalMem_v2, (&bytes, device));
  info.bytes = bytes;
  FRESHET_ASSIGN(info.compute_major, attribute_of(nvidia, device, driver::kAttributeComputeMajor));
  FRESHET_ASSIGN(info.compute_minor, attribute_of(nvidia, device, driver::kAttributeComputeMinor));
  FRESHET_ASSIGN(const int descriptors, attribute_of(nvidia, device, driver::kAttributeDescriptors));
  FRESHET_ASSIGN(const int read_only, attribute_of(nvidia, device, driver::kAttributeReadOnlyRegister));
  info.exports_slabs = descriptors != 0;
  FRESHET_ASSIGN(const int host_addresses, attribute_of(nvidia, device, driver::kAttributeHostAddresses));
  info.registers_read_only = read_only != 0;
  info.kernels_reach_host = host_addresses != 0;
  return info;
}

class DriverEngine final : public Engine {
 public:
  static Result<std::unique_ptr<Engine>> open(const std::shared_ptr<const Driver>& nvidia, driver::Ordinal device) {
    FRESHET_ASSIGN(DeviceInfo info, info_of(*nvidia, device));
    for (const auto& [attribute, need] :
         {std::pair(driver::kAttributeUnifiedAddressing, "one address space with the host"),
          std::pair(driver::kAttributeVirtualMemory, "virtual memory management")}) {
      FRESHET_ASSIGN(const int has, attribute_of(*nvidia, device, attribute));
      if (has == 0) return fail(Code::unsupported, format("open device {}: it has no {}", info.uuid.text(), need));
    }
    std::size_t granularity = 0;
    const auto properties = properties_of(device, info.exports_slabs);
    FRESHET_TRY_DRIVER(*nvidia, cuMemGetAllocationGranularity,
                       (&granularity, &properties, driver::kGranularityMinimum));
    if (granularity == 0) return fail(Code::unsupported, "cuMemGetAllocationGranularity: 0 bytes");
    info.granularity = granularity;
    driver::Context context = nullptr;
    const driver::RelaxedCapture relaxed(nvidia->calls);
    FRESHET_TRY_DRIVER(*nvidia, cuDevicePrimaryCtxRetain, (&context, device));
    return std::unique_ptr<Engine>(new DriverEngine(nvidia, device, context, std::move(info)));
  }

  ~DriverEngine() override {
    // A lost context answers with its error; there is nobody left to tell.
    if (module_ != nullptr) (void)unload();
    const driver::RelaxedCapture relaxed(nvidia_->calls);
    (void)nvidia_->calls.cuDevicePrimaryCtxRelease_v2(device_);
  }

  const DeviceInfo& info() const override { return info_; }
  bool is_stuck() const override { return is_stuck_.load(); }

  Result<Room> room() override {
    std::size_t free = 0;
    std::size_t total = 0;
    FRESHET_TRY(in_context("cuMemGetInfo", [&] { return nvidia_->calls.cuMemGetInfo_v2(&free, &total); }));
    return Room{.free = free, .total = total};
  }

  Result<PointerInfo> describe(const void* address) override {
    unsigned int type = 0;
    unsigned int is_managed = 0;
    int ordinal = -1;
    std::array<unsigned int, 3> attributes = {driver::kPointerMemoryType, driver::kPointerIsManaged,
                                              driver::kPointerOrdinal};
    std::array<void*, 3> values = {&type, &is_managed, &ordinal};
    // Unlike the call for one attribute, this one also answers for an address that the driver does not know: zeros.
    FRESHET_TRY(in_context("cuPointerGetAttributes", [&] {
      return nvidia_->calls.cuPointerGetAttributes(static_cast<unsigned int>(attributes.size()), attributes.data(),
                                                   values.data(), device_address(address));
    }));
    PointerInfo info;
    if (is_managed != 0) {
      info.kind = MemoryKind::managed;
    } else if (type == driver::kMemoryTypeHost) {
      info.kind = MemoryKind::pinned;
    } else if (type == driver::kMemoryTypeDevice || type == driver::kMemoryTypeUnified) {
      info.kind = MemoryKind::device;
    }
    if ((info.kind == MemoryKind::device || info.kind == MemoryKind::managed) && ordinal >= 0) {
      driver::Ordinal device = 0;
      FRESHET_TRY_DRIVER(*nvidia_, cuDeviceGet, (&device, ordinal));
      FRESHET_ASSIGN(info.device, uuid_of(*nvidia_, device));
    }
    return info;
  }

  Result<Block> create_block(std::uint64_t bytes) override {
    const auto properties = properties_of(device_, info_.exports_slabs);
    driver::AllocationHandle handle = 0;
    FRESHET_TRY(in_context("cuMemCreate", [&] { return nvidia_->calls.cuMemCreate(&handle, bytes, &properties, 0); }));
    return map(handle, bytes, driver::kAccessReadWrite);
  }

  Result<FileDescriptor> export_block(const Block& block) override {
    int descriptor = -1;
    FRESHET_TRY(in_context("cuMemExportToShareableHandle", [&] {
      return nvidia_->calls.cuMemExportToShareableHandle(&descriptor, block.native, driver::kHandleTypeDescriptor, 0);
    }));
    FileDescriptor exported(descriptor);
    // A program that this process starts would keep the memory, and could write it.
    if (::fcntl(descriptor, F_SETFD, FD_CLOEXEC) != 0)
      return fail_errno(errno, "close the slab's descriptor in children");
    return exported;
  }

  Result<Block> import_block(FileDescriptor descriptor, std::uint64_t bytes) override {
    driver::AllocationHandle handle = 0;
    // The descriptor travels as the pointer's value.
    auto* const value = reinterpret_cast<void*>(static_cast<std::uintptr_t>(descriptor.get()));
    if (auto status = in_context("cuMemImportFromShareableHandle",
                                 [&] {
                                   return nvidia_->calls.cuMemImportFromShareableHandle(&handle, value,
                                                                                        driver::kHandleTypeDescriptor);
                                 });
        !status) {
      return fail(driver::as_senders_fault(std::move(status.error())));
    }
    driver::AllocationProperties properties;
    auto status = in_context("cuMemGetAllocationPropertiesFromHandle", [&] {
      return nvidia_->calls.cuMemGetAllocationPropertiesFromHandle(&properties, handle);
    });
    if (status && (properties.location.type != driver::kLocationTypeDevice || properties.location.id != device_)) {
      status = fail(Code::unsupported, "the slab lies on another device");
    }
    if (!status) {
      (void)in_context("cuMemRelease", [&] { return nvidia_->calls.cuMemRelease(handle); });
      return fail(std::move(status.error()));
    }
    return map(handle, bytes, driver::kAccessRead);
  }

  Status destroy_block(const Block& block) override {
    const driver::Address address = device_address(block.address);
    FRESHET_TRY(in_context("cuMemUnmap", [&] { return nvidia_->calls.cuMemUnmap(address, block.bytes); }));
    FRESHET_TRY(in_context("cuMemRelease", [&] { return nvidia_->calls.cuMemRelease(block.native); }));
    return in_context("cuMemAddressFree", [&] { return nvidia_->calls.cuMemAddressFree(address, block.bytes); });
  }

  Status register_host(const void* address, std::uint64_t bytes, HostAccess access) override {
    const unsigned int flags =
        driver::kRegisterPortable | (access == HostAccess::read_only ? driver::kRegisterReadOnly : 0);
    return in_context("cuMemHostRegister",
                      [&] { return nvidia_->calls.cuMemHostRegister_v2(const_cast<void*>(address), bytes, flags); });
  }

  Status unregister_host(const void* address) override {
    return in_context("cuMemHostUnregister",
                      [&] { return nvidia_->calls.cuMemHostUnregister(const_cast<void*>(address)); });
  }

  Result<StreamHandle> create_stream() override {
    driver::StreamObject stream = nullptr;
    FRESHET_TRY(in_context("cuStreamCreate",
                           [&] { return nvidia_->calls.cuStreamCreate(&stream, driver::kStreamNonBlocking); }));
    return StreamHandle{stream};
  }

  Status destroy_stream(StreamHandle stream) override {
    return in_context("cuStreamDestroy", [&] { return nvidia_->calls.cuStreamDestroy_v2(native_of(stream)); });
  }

  Result<EventHandle> create_event() override {
    driver::EventObject event = nullptr;
    FRESHET_TRY(
        in_context("cuEventCreate", [&] { return nvidia_->calls.cuEventCreate(&event, driver::kEventWithoutTiming); }));
    return EventHandle{event};
  }

  Status destroy_event(EventHandle event) override {
    return in_context("cuEventDestroy", [&] { return nvidia_->calls.cuEventDestroy_v2(native_of(event)); });
  }

  Result<bool> is_capturing(StreamHandle stream) override {
    unsigned int status = driver::kCaptureStatusNone;
    FRESHET_TRY(in_context("cuStreamIsCapturing",
                           [&] { return nvidia_->calls.cuStreamIsCapturing(native_of(stream), &status); }));
    return status != driver::kCaptureStatusNone;
  }

  Status record(EventHandle event, StreamHandle stream) override {
    return in_context("cuEventRecord",
                      [&] { return nvidia_->calls.cuEventRecord(native_of(event), native_of(stream)); });
  }

  Result<bool> is_done(EventHandle event) override {
    bool runs = false;
    FRESHET_TRY(in_context("cuEventQuery", [&] {
      const Answer answer = nvidia_->calls.cuEventQuery(native_of(event));
      runs = answer == driver::kNotReady;
      return runs ? driver::kSuccess : answer;
    }));
    return !runs;
  }

  Status make_wait(StreamHandle stream, EventHandle event) override {
    return in_context("cuStreamWaitEvent",
                      [&] { return nvidia_->calls.cuStreamWaitEvent(native_of(stream), native_of(event), 0); });
  }

  Status copy(StreamHandle stream, std::byte* to, const std::byte* from, std::uint64_t bytes) override {
    return in_context("cuMemcpyAsync", [&] {
      return nvidia_->calls.cuMemcpyAsync(device_address(to), device_address(from), bytes, native_of(stream));
    });
  }

  Status launch(StreamHandle stream, const Launch& launch, std::span<const std::byte> arguments) override {
    // Until the kernel is queued, so that no unload() takes its code meanwhile.
    MutexLock lock(mutex_);
    FRESHET_ASSIGN(const driver::Function function, function_of(launch.kernel));
    // The driver copies the arguments during the call.
    std::array<void*, 1> parameters = {const_cast<std::byte*>(arguments.data())};
    return in_context("cuLaunchKernel", [&] {
      return nvidia_->calls.cuLaunchKernel(function, launch.blocks, 1, 1, launch.threads, 1, 1, launch.shared_bytes,
                                           native_of(stream), parameters.data(), nullptr);
    });
  }

  Status unload() override {
    MutexLock lock(mutex_);
    functions_.clear();
    if (module_ == nullptr) return {};
    const driver::Module module = std::exchange(module_, nullptr);
    return in_context("cuModuleUnload", [&] { return nvidia_->calls.cuModuleUnload(module); });
  }

 private:
  DriverEngine(std::shared_ptr<const Driver> nvidia, driver::Ordinal device, driver::Context context, DeviceInfo info)
      : nvidia_(std::move(nvidia)), device_(device), context_(context), info_(std::move(info)) {}

  /// Calls with the device's primary context current, and leaves the thread's own context and capture mode as they
  /// were.
  template <typename Call>
  Status in_context(std::string_view name, Call call) {
    const driver::RelaxedCapture relaxed(nvidia_->calls);
    Answer answer = relaxed.answer();
    if (answer == driver::kSuccess) answer = nvidia_->calls.cuCtxPushCurrent_v2(context_);
    if (answer == driver::kSuccess) {
      answer = call();
      driver::Context popped = nullptr;
      const Answer back = nvidia_->calls.cuCtxPopCurrent_v2(&popped);
      if (answer == driver::kSuccess) answer = back;
    }
    if (driver::sticks(answer)) is_stuck_ = true;
    return answer_of(*nvidia_, name, answer);
  }

  /// Maps an allocation at an address of its own; one that a neighbour sent is for reading. Takes the handle in every
  /// case.
  Result<Block> map(driver::AllocationHandle handle, std::uint64_t bytes, unsigned int access) {
    driver::Address address = 0;
    auto status =
        in_context("cuMemAddressReserve", [&] { return nvidia_->calls.cuMemAddressReserve(&address, bytes, 0, 0, 0); });
    bool is_mapped = false;
    if (status) {
      status = in_context("cuMemMap", [&] { return nvidia_->calls.cuMemMap(address, bytes, 0, handle, 0); });
      is_mapped = status.has_value();
      // Mapping more than there is is an invalid value.
      if (!is_mapped && access == driver::kAccessRead) status = fail(driver::as_senders_fault(status.error()));
    }
    if (is_mapped) {
      const driver::AccessDescription description{.location = {.type = driver::kLocationTypeDevice, .id = device_},
                                                  .flags = access};
      status =
          in_context("cuMemSetAccess", [&] { return nvidia_->calls.cuMemSetAccess(address, bytes, &description, 1); });
    }
    if (status) return Block{.address = reinterpret_cast<std::byte*>(address), .bytes = bytes, .native = handle};
    if (is_mapped) (void)in_context("cuMemUnmap", [&] { return nvidia_->calls.cuMemUnmap(address, bytes); });
    if (address != 0)
      (void)in_context("cuMemAddressFree", [&] { return nvidia_->calls.cuMemAddressFree(address, bytes); });
    (void)in_context("cuMemRelease", [&] { return nvidia_->calls.cuMemRelease(handle); });
    return fail(std::move(status.error()));
  }

  Result<driver::Function> function_of(Kernel kernel) FRESHET_REQUIRES(mutex_) {
    if (const auto found = functions_.find(kernel); found != functions_.end()) return found->second;
    driver::Module module = module_;
    if (module == nullptr) {
      if (fatbin().empty()) return fail(Code::unsupported, std::string(why_no_fatbin()));
      FRESHET_TRY(
          in_context("cuModuleLoadData", [&] { return nvidia_->calls.cuModuleLoadData(&module, fatbin().data()); }));
      module_ = module;
    }
    const std::string symbol(symbol_of(kernel));
    driver::Function function = nullptr;
    FRESHET_TRY(in_context("cuModuleGetFunction " + symbol,
                           [&] { return nvidia_->calls.cuModuleGetFunction(&function, module, symbol.c_str()); }));
    functions_[kernel] = function;
    return function;
  }

  const std::shared_ptr<const Driver> nvidia_;
  const driver::Ordinal device_;
  const driver::Context context_;
  const DeviceInfo info_;
  std::atomic<bool> is_stuck_ = false;

  Mutex mutex_;
  driver::Module module_ FRESHET_GUARDED_BY(mutex_) = nullptr;
  std::map<Kernel, driver::Function> functions_ FRESHET_GUARDED_BY(mutex_);
};

class DriverPlatform final : public Platform {
 public:
  explicit DriverPlatform(std::shared_ptr<const Driver> nvidia) : nvidia_(std::move(nvidia)) {}

  std::string description() const override { return nvidia_->description(); }

  Result<std::vector<DeviceInfo>> devices() override {
    int count = 0;
    FRESHET_TRY_DRIVER(*nvidia_, cuDeviceGetCount, (&count));
    std::vector<DeviceInfo> devices;
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      FRESHET_ASSIGN(const driver::Ordinal device, device_at(ordinal));
      FRESHET_ASSIGN(DeviceInfo info, info_of(*nvidia_, device));
      devices.push_back(std::move(info));
    }
    return devices;
  }

  Result<std::shared_ptr<Device>> open(const Uuid& uuid) override {
    FRESHET_ASSIGN(const auto all, devices());
    for (int ordinal = 0; ordinal < static_cast<int>(all.size()); ++ordinal) {
      if (all[static_cast<std::size_t>(ordinal)].uuid != uuid) continue;
      FRESHET_ASSIGN(const driver::Ordinal device, device_at(ordinal));
      FRESHET_ASSIGN(auto engine, DriverEngine::open(nvidia_, device));
      return Device::make(std::move(engine));
    }
    return fail_unknown_device(uuid, all);
  }

 private:
  Result<driver::Ordinal> device_at(int ordinal) const {
    driver::Ordinal device = 0;
    FRESHET_TRY_DRIVER(*nvidia_, cuDeviceGet, (&device, ordinal));
    return device;
  }

  const std::shared_ptr<const Driver> nvidia_;
};

#undef FRESHET_TRY_DRIVER

}  // namespace

Result<std::unique_ptr<Platform>> open_driver_platform() {
  FRESHET_ASSIGN(auto nvidia, driver::open_driver());
  return std::unique_ptr<Platform>(new DriverPlatform(std::make_shared<const Driver>(std::move(nvidia))));
}

}  // namespace freshet::gpu
