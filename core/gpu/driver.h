// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The NVIDIA driver's functions, as libcuda.so.1 exports them, with prototypes of our own: a build needs no CUDA
/// header, a program starts without a driver. Where a toolkit's cuda.h is found, a test compares names, types, values
/// and layouts with it (tests/core/gpu/driver_header_test.cc).
///
/// A symbol's name has its version (cuMemGetInfo_v2): it is what cuda.h makes of the plain name, and the library keeps
/// it for ever. All are in every driver from 580 on.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace freshet::gpu::driver {

// The driver's types. Handles are addresses of objects that only the driver knows.
using Answer = unsigned int;                  // CUresult
using Ordinal = int;                          // CUdevice
using Address = unsigned long long;           // CUdeviceptr
using AllocationHandle = unsigned long long;  // CUmemGenericAllocationHandle
using Context = struct ContextObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using StreamObject = struct StreamObjectBody*;
using EventObject = struct EventObjectBody*;

struct UuidBytes {
  char bytes[16];
};

struct Location {
  unsigned int type = 0;
  int id = 0;
};

struct AllocationProperties {
  unsigned int type = 0;
  unsigned int handle_types = 0;
  Location location;
  void* win32_handle_data = nullptr;
  struct Flags {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};

struct AccessDescription {
  Location location;
  unsigned int flags = 0;
};

// Values of the driver's enumerations that we pass or understand.
constexpr unsigned int kAllocationTypePinned = 1;
constexpr unsigned int kHandleTypeDescriptor = 1;
constexpr unsigned int kLocationTypeDevice = 1;
constexpr unsigned int kGranularityMinimum = 0;
constexpr unsigned int kAccessRead = 1;
constexpr unsigned int kAccessReadWrite = 3;
constexpr unsigned int kRegisterPortable = 1;
constexpr unsigned int kRegisterReadOnly = 8;
constexpr unsigned int kStreamNonBlocking = 1;
constexpr unsigned int kCaptureModeRelaxed = 2;
constexpr unsigned int kCaptureStatusNone = 0;
constexpr unsigned int kEventWithoutTiming = 2;

constexpr unsigned int kAttributeUnifiedAddressing = 41;
constexpr unsigned int kAttributeComputeMajor = 75;
constexpr unsigned int kAttributeComputeMinor = 76;
constexpr unsigned int kAttributeHostAddresses = 91;
constexpr unsigned int kAttributeVirtualMemory = 102;
constexpr unsigned int kAttributeDescriptors = 103;
constexpr unsigned int kAttributeReadOnlyRegister = 113;

constexpr unsigned int kPointerMemoryType = 2;
constexpr unsigned int kPointerIsManaged = 8;
constexpr unsigned int kPointerOrdinal = 9;
constexpr unsigned int kMemoryTypeHost = 1;
constexpr unsigned int kMemoryTypeDevice = 2;
constexpr unsigned int kMemoryTypeUnified = 4;

// Answers.
constexpr Answer kSuccess = 0;
constexpr Answer kInvalidValue = 1;
constexpr Answer kOutOfMemory = 2;
constexpr Answer kNotInitialized = 3;
constexpr Answer kDeinitialized = 4;
constexpr Answer kStubLibrary = 34;
constexpr Answer kCallRequiresNewerDriver = 36;
constexpr Answer kDeviceUnavailable = 46;
constexpr Answer kNoDevice = 100;
constexpr Answer kInvalidDevice = 101;
constexpr Answer kNoBinaryForGpu = 209;
constexpr Answer kEccUncorrectable = 214;
constexpr Answer kPeerAccessUnsupported = 217;
constexpr Answer kNvlinkUncorrectable = 220;
constexpr Answer kJitCompilerNotFound = 221;
constexpr Answer kUnsupportedPtxVersion = 222;
constexpr Answer kJitCompilationDisabled = 223;
constexpr Answer kContained = 226;
constexpr Answer kInvalidHandle = 400;
constexpr Answer kNotFound = 500;
constexpr Answer kNotReady = 600;
constexpr Answer kIllegalAddress = 700;
constexpr Answer kLaunchTimeout = 702;
constexpr Answer kContextIsDestroyed = 709;
constexpr Answer kAssert = 710;
constexpr Answer kHostMemoryAlreadyRegistered = 712;
constexpr Answer kHostMemoryNotRegistered = 713;
constexpr Answer kHardwareStackError = 714;
constexpr Answer kLaunchFailed = 719;  // 714 to 719 are all a kernel's fault.
constexpr Answer kTensorMemoryLeak = 721;
constexpr Answer kNotSupported = 801;
constexpr Answer kSystemNotReady = 802;
constexpr Answer kMpsMaxConnectionsReached = 809;  // 802 to 809: the system, its driver, or MPS cannot serve.
constexpr Answer kMpsClientTerminated = 810;
constexpr Answer kStreamCaptureUnsupported = 900;
constexpr Answer kStreamCaptureWrongThread = 908;  // 900 to 908: amid the capture of a CUDA graph.
constexpr Answer kTimeout = 909;

/// Each function's name and parameters; all return an Answer.
#define FRESHET_DRIVER_FUNCTIONS(X)                                                                                    \
  X(cuInit, (unsigned int flags))                                                                                      \
  X(cuDriverGetVersion, (int* version))                                                                                \
  X(cuGetErrorName, (Answer answer, const char** name))                                                                \
  X(cuGetErrorString, (Answer answer, const char** text))                                                              \
  X(cuDeviceGetCount, (int* count))                                                                                    \
  X(cuDeviceGet, (Ordinal * device, int ordinal))                                                                      \
  X(cuDeviceGetName, (char* name, int bytes, Ordinal device))                                                          \
  X(cuDeviceGetUuid_v2, (UuidBytes * uuid, Ordinal device))                                                            \
  X(cuDeviceTotalMem_v2, (std::size_t * bytes, Ordinal device))                                                        \
  X(cuDeviceGetAttribute, (int* value, unsigned int attribute, Ordinal device))                                        \
  X(cuDevicePrimaryCtxRetain, (Context * context, Ordinal device))                                                     \
  X(cuDevicePrimaryCtxRelease_v2, (Ordinal device))                                                                    \
  X(cuCtxPushCurrent_v2, (Context context))                                                                            \
  X(cuCtxPopCurrent_v2, (Context * context))                                                                           \
  X(cuThreadExchangeStreamCaptureMode, (unsigned int* mode))                                                           \
  X(cuMemGetInfo_v2, (std::size_t * free, std::size_t * total))                                                        \
  X(cuPointerGetAttributes, (unsigned int count, unsigned int* attributes, void** values, Address address))            \
  X(cuMemGetAllocationGranularity, (std::size_t * bytes, const AllocationProperties* properties, unsigned int option)) \
  X(cuMemCreate,                                                                                                       \
    (AllocationHandle * handle, std::size_t bytes, const AllocationProperties* properties, unsigned long long flags))  \
  X(cuMemRelease, (AllocationHandle handle))                                                                           \
  X(cuMemAddressReserve,                                                                                               \
    (Address * address, std::size_t bytes, std::size_t alignment, Address wanted, unsigned long long flags))           \
  X(cuMemAddressFree, (Address address, std::size_t bytes))                                                            \
  X(cuMemMap,                                                                                                          \
    (Address address, std::size_t bytes, std::size_t offset, AllocationHandle handle, unsigned long long flags))       \
  X(cuMemUnmap, (Address address, std::size_t bytes))                                                                  \
  X(cuMemSetAccess, (Address address, std::size_t bytes, const AccessDescription* access, std::size_t count))          \
  X(cuMemExportToShareableHandle,                                                                                      \
    (void* descriptor, AllocationHandle handle, unsigned int type, unsigned long long flags))                          \
  X(cuMemImportFromShareableHandle, (AllocationHandle * handle, void* descriptor, unsigned int type))                  \
  X(cuMemGetAllocationPropertiesFromHandle, (AllocationProperties * properties, AllocationHandle handle))              \
  X(cuMemHostRegister_v2, (void* address, std::size_t bytes, unsigned int flags))                                      \
  X(cuMemHostUnregister, (void* address))                                                                              \
  X(cuMemcpyAsync, (Address to, Address from, std::size_t bytes, StreamObject stream))                                 \
  X(cuStreamCreate, (StreamObject * stream, unsigned int flags))                                                       \
  X(cuStreamDestroy_v2, (StreamObject stream))                                                                         \
  X(cuStreamWaitEvent, (StreamObject stream, EventObject event, unsigned int flags))                                   \
  X(cuStreamIsCapturing, (StreamObject stream, unsigned int* status))                                                  \
  X(cuEventCreate, (EventObject * event, unsigned int flags))                                                          \
  X(cuEventDestroy_v2, (EventObject event))                                                                            \
  X(cuEventRecord, (EventObject event, StreamObject stream))                                                           \
  X(cuEventQuery, (EventObject event))                                                                                 \
  X(cuModuleLoadData, (Module * module, const void* image))                                                            \
  X(cuModuleUnload, (Module module))                                                                                   \
  X(cuModuleGetFunction, (Function * function, Module module, const char* name))                                       \
  X(cuLaunchKernel, (Function function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,                 \
                     unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,      \
                     StreamObject stream, void** parameters, void** extra))

struct Functions {
#define FRESHET_DRIVER_POINTER(name, parameters) Answer(*name) parameters = nullptr;
  FRESHET_DRIVER_FUNCTIONS(FRESHET_DRIVER_POINTER)
#undef FRESHET_DRIVER_POINTER
};

/// While it lives, the thread's calls do not spoil a CUDA graph that another thread captures in the global mode, which
/// is a framework's default. None of our calls belongs to such a graph, unless the call's stream is captured. One
/// thread.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const Functions& calls)
      : calls_(calls), answer_(calls.cuThreadExchangeStreamCaptureMode(&mode_)) {}
  ~RelaxedCapture() {
    if (answer_ == kSuccess) (void)calls_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;
  Answer answer() const { return answer_; }

 private:
  const Functions& calls_;
  unsigned int mode_ = kCaptureModeRelaxed;  ///< The call puts the thread's own mode here.
  const Answer answer_;
};

/// An opened driver. Immutable. The library stays loaded until the process ends: the driver has threads of its own.
struct Driver {
  Functions calls;
  int cuda_version = 0;       ///< As cuDriverGetVersion says: 13000 is CUDA 13.0.
  std::string kernel_driver;  ///< "580.159.03"; empty where the kernel does not say.

  /// "driver 580.159.03, CUDA 13.0".
  std::string description() const;
};

/// Opens the library, resolves all functions, initialises the driver. unavailable when there is no such library, when
/// it lacks a function, finds no device, or is older than driver 580.
Result<Driver> open_driver(const std::string& library = "libcuda.so.1");

/// unavailable, with the driver's version, when it is older than 580, the first with CUDA 13.0.
Status check_driver_version(int cuda_version, std::string_view kernel_driver);

/// What a caller does next about an answer.
Code code_of(Answer answer);

/// An error of taking a slab that a neighbour sent. What the driver does not accept or find is its sender's fault, and
/// corrupt; any other error stays what it is.
Error as_senders_fault(Error error);

/// Whether the device's context keeps this error, so that no call works again.
bool sticks(Answer answer);

/// "CUDA_ERROR_INVALID_VALUE: invalid argument", with its code. REQUIRES: not kSuccess.
tl::unexpected<Error> fail_answer(const Functions& calls, std::string_view call, Answer answer);

}  // namespace freshet::gpu::driver
