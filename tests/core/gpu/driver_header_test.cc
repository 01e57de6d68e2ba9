// SPDX-License-Identifier: Apache-2.0
// Where a CUDA toolkit is, the compiler compares our prototypes of the driver with its header. This file does not
// compile when one of them differs.
#include <gtest/gtest.h>

#include "core/gpu/driver.h"

#ifdef FRESHET_CUDA_HEADER
#include FRESHET_CUDA_HEADER

#include <dlfcn.h>

#include <cstddef>
#include <filesystem>
#include <string>

#include "tests/core/gpu/same_shape.h"

namespace freshet::gpu {
namespace {

// What the comparison must and must not tell apart.
static_assert(kSameShape<unsigned int (*)(driver::Context), CUresult (*)(CUcontext)>);
static_assert(!kSameShape<unsigned int (*)(driver::Context), CUresult (*)(CUcontext*)>);
static_assert(!kSameShape<unsigned int (*)(int), CUresult (*)(size_t)>);
static_assert(!kSameShape<unsigned int (*)(const void*), CUresult (*)(void*)>);

// The name with its version is the one that the header declares, since the plain name is a macro for it.
#define FRESHET_SAME_PROTOTYPE(name, parameters) \
  static_assert(kSameShape<decltype(driver::Functions::name), decltype(&::name)>, #name);
FRESHET_DRIVER_FUNCTIONS(FRESHET_SAME_PROTOTYPE)

FRESHET_SAME_LAYOUT(driver::UuidBytes, CUuuid);
FRESHET_SAME_LAYOUT(driver::Location, CUmemLocation);
FRESHET_SAME_FIELD(driver::Location, type, CUmemLocation, type);
FRESHET_SAME_FIELD(driver::Location, id, CUmemLocation, id);
FRESHET_SAME_LAYOUT(driver::AllocationProperties, CUmemAllocationProp);
FRESHET_SAME_FIELD(driver::AllocationProperties, type, CUmemAllocationProp, type);
FRESHET_SAME_FIELD(driver::AllocationProperties, handle_types, CUmemAllocationProp, requestedHandleTypes);
FRESHET_SAME_FIELD(driver::AllocationProperties, location, CUmemAllocationProp, location);
FRESHET_SAME_FIELD(driver::AllocationProperties, win32_handle_data, CUmemAllocationProp, win32HandleMetaData);
FRESHET_SAME_FIELD(driver::AllocationProperties, flags, CUmemAllocationProp, allocFlags);
FRESHET_SAME_FIELD(driver::AllocationProperties, flags.compression, CUmemAllocationProp, allocFlags.compressionType);
FRESHET_SAME_FIELD(driver::AllocationProperties, flags.gpu_direct_rdma, CUmemAllocationProp,
                   allocFlags.gpuDirectRDMACapable);
FRESHET_SAME_FIELD(driver::AllocationProperties, flags.usage, CUmemAllocationProp, allocFlags.usage);
FRESHET_SAME_LAYOUT(driver::AccessDescription, CUmemAccessDesc);
FRESHET_SAME_FIELD(driver::AccessDescription, location, CUmemAccessDesc, location);
FRESHET_SAME_FIELD(driver::AccessDescription, flags, CUmemAccessDesc, flags);
static_assert(sizeof(driver::Address) == sizeof(CUdeviceptr) && sizeof(driver::Ordinal) == sizeof(CUdevice));
static_assert(sizeof(driver::AllocationHandle) == sizeof(CUmemGenericAllocationHandle));

#define FRESHET_SAME_VALUE(ours, theirs) static_assert(driver::ours == static_cast<unsigned int>(theirs), #theirs)

FRESHET_SAME_VALUE(kAllocationTypePinned, CU_MEM_ALLOCATION_TYPE_PINNED);
FRESHET_SAME_VALUE(kHandleTypeDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
FRESHET_SAME_VALUE(kLocationTypeDevice, CU_MEM_LOCATION_TYPE_DEVICE);
FRESHET_SAME_VALUE(kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
FRESHET_SAME_VALUE(kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
FRESHET_SAME_VALUE(kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
FRESHET_SAME_VALUE(kRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
FRESHET_SAME_VALUE(kRegisterReadOnly, CU_MEMHOSTREGISTER_READ_ONLY);
FRESHET_SAME_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
FRESHET_SAME_VALUE(kCaptureModeRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
FRESHET_SAME_VALUE(kEventWithoutTiming, CU_EVENT_DISABLE_TIMING);
FRESHET_SAME_VALUE(kAttributeUnifiedAddressing, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
FRESHET_SAME_VALUE(kAttributeComputeMajor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
FRESHET_SAME_VALUE(kAttributeComputeMinor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
FRESHET_SAME_VALUE(kAttributeHostAddresses, CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
FRESHET_SAME_VALUE(kAttributeVirtualMemory, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
FRESHET_SAME_VALUE(kAttributeDescriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
FRESHET_SAME_VALUE(kAttributeReadOnlyRegister, CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
FRESHET_SAME_VALUE(kPointerMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
FRESHET_SAME_VALUE(kPointerIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
FRESHET_SAME_VALUE(kPointerOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
FRESHET_SAME_VALUE(kMemoryTypeHost, CU_MEMORYTYPE_HOST);
FRESHET_SAME_VALUE(kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
FRESHET_SAME_VALUE(kMemoryTypeUnified, CU_MEMORYTYPE_UNIFIED);
FRESHET_SAME_VALUE(kSuccess, CUDA_SUCCESS);
FRESHET_SAME_VALUE(kInvalidValue, CUDA_ERROR_INVALID_VALUE);
FRESHET_SAME_VALUE(kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
FRESHET_SAME_VALUE(kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
FRESHET_SAME_VALUE(kDeinitialized, CUDA_ERROR_DEINITIALIZED);
FRESHET_SAME_VALUE(kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
FRESHET_SAME_VALUE(kDeviceUnavailable, CUDA_ERROR_DEVICE_UNAVAILABLE);
FRESHET_SAME_VALUE(kNoDevice, CUDA_ERROR_NO_DEVICE);
FRESHET_SAME_VALUE(kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
FRESHET_SAME_VALUE(kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
FRESHET_SAME_VALUE(kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
FRESHET_SAME_VALUE(kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
FRESHET_SAME_VALUE(kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
FRESHET_SAME_VALUE(kJitCompilerNotFound, CUDA_ERROR_JIT_COMPILER_NOT_FOUND);
FRESHET_SAME_VALUE(kUnsupportedPtxVersion, CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
FRESHET_SAME_VALUE(kJitCompilationDisabled, CUDA_ERROR_JIT_COMPILATION_DISABLED);
FRESHET_SAME_VALUE(kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
FRESHET_SAME_VALUE(kNotFound, CUDA_ERROR_NOT_FOUND);
FRESHET_SAME_VALUE(kNotReady, CUDA_ERROR_NOT_READY);
FRESHET_SAME_VALUE(kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
FRESHET_SAME_VALUE(kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
FRESHET_SAME_VALUE(kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
FRESHET_SAME_VALUE(kAssert, CUDA_ERROR_ASSERT);
FRESHET_SAME_VALUE(kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
FRESHET_SAME_VALUE(kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
FRESHET_SAME_VALUE(kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
FRESHET_SAME_VALUE(kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
FRESHET_SAME_VALUE(kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
FRESHET_SAME_VALUE(kSystemNotReady, CUDA_ERROR_SYSTEM_NOT_READY);
FRESHET_SAME_VALUE(kMpsMaxConnectionsReached, CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED);
FRESHET_SAME_VALUE(kMpsClientTerminated, CUDA_ERROR_MPS_CLIENT_TERMINATED);
FRESHET_SAME_VALUE(kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
FRESHET_SAME_VALUE(kStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
FRESHET_SAME_VALUE(kTimeout, CUDA_ERROR_TIMEOUT);
#if CUDA_VERSION >= 13000
FRESHET_SAME_VALUE(kCallRequiresNewerDriver, CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER);
FRESHET_SAME_VALUE(kContained, CUDA_ERROR_CONTAINED);
FRESHET_SAME_VALUE(kTensorMemoryLeak, CUDA_ERROR_TENSOR_MEMORY_LEAK);
#endif

TEST(GpuDriverHeader, AgreesWithOurPrototypes) { SUCCEED() << "the compiler has compared them"; }

TEST(GpuDriverHeader, DriversOfItsToolkitExportAllOurFunctions) {
  // A toolkit's stub of the driver exports what a driver of its version exports.
  const auto toolkit = std::filesystem::path(FRESHET_CUDA_HEADER).parent_path().parent_path();
  void* stub = nullptr;
  for (const char* folder : {"lib64/stubs", "lib/stubs", "targets/x86_64-linux/lib/stubs"}) {
    if (stub == nullptr) stub = ::dlopen((toolkit / folder / "libcuda.so").c_str(), RTLD_LAZY | RTLD_LOCAL);
  }
  if (stub == nullptr) GTEST_SKIP() << "the CUDA toolkit at " << toolkit << " has no stub of the driver";
#define FRESHET_IS_EXPORTED(name, parameters) EXPECT_NE(::dlsym(stub, #name), nullptr) << #name;
  FRESHET_DRIVER_FUNCTIONS(FRESHET_IS_EXPORTED)
  ::dlclose(stub);
}

}  // namespace
}  // namespace freshet::gpu

#else

TEST(GpuDriverHeader, AgreesWithOurPrototypes) {
  GTEST_SKIP() << "no CUDA toolkit with cuda.h was found when this was built";
}

#endif
