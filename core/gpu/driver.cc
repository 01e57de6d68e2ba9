// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/driver.h"

#include <dlfcn.h>

#include <fstream>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::gpu::driver {
namespace {

constexpr int kCudaVersionMin = 13000;  // Driver 580.

/// The version of the kernel's module, which need not be that of the library (NVIDIA's packages for compatibility).
std::string version_of_kernel_driver() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  std::getline(file, version);
  return shown(version, 32);
}

std::string loader_error() {
  const char* const text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

}  // namespace

std::string Driver::description() const {
  const std::string cuda = format("CUDA {}.{}", cuda_version / 1000, cuda_version % 1000 / 10);
  return kernel_driver.empty() ? "driver of " + cuda : format("driver {}, {}", kernel_driver, cuda);
}

Result<Driver> open_driver(const std::string& library) {
  const auto context = [&](std::string why) {
    return fail(Code::unavailable, format("open the NVIDIA driver: {}", why));
  };
  void* const handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return context(format("no {} here ({})", library, loader_error()));

  Driver driver;
  const char* missing = nullptr;
#define FRESHET_DRIVER_RESOLVE(name, parameters)                                \
  if (void* const address = ::dlsym(handle, #name); address != nullptr) {       \
    driver.calls.name = reinterpret_cast<decltype(driver.calls.name)>(address); \
  } else if (missing == nullptr) {                                              \
    missing = #name;                                                            \
  }
  FRESHET_DRIVER_FUNCTIONS(FRESHET_DRIVER_RESOLVE)
#undef FRESHET_DRIVER_RESOLVE

  driver.kernel_driver = version_of_kernel_driver();
  // An old driver says its version before anything else is asked of it.
  if (driver.calls.cuDriverGetVersion != nullptr && driver.calls.cuDriverGetVersion(&driver.cuda_version) == kSuccess &&
      driver.cuda_version > 0) {
    FRESHET_TRY(check_driver_version(driver.cuda_version, driver.kernel_driver));
  }
  if (missing != nullptr)
    return context(format("{} has no function {}; Freshet needs driver 580 or later", library, missing));

  const auto answered = [&](std::string_view call, Answer answer) {
    return context(fail_answer(driver.calls, call, answer).value().message());
  };
  if (const Answer answer = driver.calls.cuInit(0); answer != kSuccess) {
    if (answer == kNoDevice)
      return context(format("{}, but no device that this process may use", driver.description()));
    return answered("cuInit", answer);
  }
  int devices = 0;
  if (const Answer answer = driver.calls.cuDeviceGetCount(&devices); answer != kSuccess) {
    return answered("cuDeviceGetCount", answer);
  }
  if (devices <= 0) return context(format("{}, but no device that this process may use", driver.description()));
  return driver;
}

Status check_driver_version(int cuda_version, std::string_view kernel_driver) {
  if (cuda_version >= kCudaVersionMin) return {};
  const Driver old{.calls = {}, .cuda_version = cuda_version, .kernel_driver = std::string(kernel_driver)};
  return fail(Code::unavailable,
              format("open the NVIDIA driver: {} is too old; Freshet needs driver 580 or later (CUDA 13.0)",
                     old.description()));
}

Code code_of(Answer answer) {
  if (sticks(answer)) return Code::failed_precondition;
  if (answer >= kSystemNotReady && answer <= kMpsMaxConnectionsReached) return Code::unavailable;
  if (answer >= kStreamCaptureUnsupported && answer <= kStreamCaptureWrongThread) return Code::failed_precondition;
  switch (answer) {
    case kOutOfMemory: return Code::out_of_space;
    case kInvalidValue:
    case kInvalidDevice:
    case kInvalidHandle: return Code::invalid_argument;
    case kNotInitialized:
    case kDeinitialized:
    case kStubLibrary:
    case kDeviceUnavailable:
    case kNoDevice: return Code::unavailable;
    case kCallRequiresNewerDriver:
    case kNoBinaryForGpu:
    case kPeerAccessUnsupported:
    case kJitCompilerNotFound:
    case kUnsupportedPtxVersion:
    case kJitCompilationDisabled:
    case kNotSupported: return Code::unsupported;
    case kHostMemoryAlreadyRegistered: return Code::already_exists;
    case kHostMemoryNotRegistered:
    case kNotFound: return Code::not_found;
    case kTimeout: return Code::timed_out;
    default: return Code::io_error;
  }
}

Error as_senders_fault(Error error) {
  if (error.code() != Code::invalid_argument && error.code() != Code::not_found) return error;
  return {Code::corrupt, "not such a slab: " + error.message()};
}

bool sticks(Answer answer) {
  switch (answer) {
    case kEccUncorrectable:
    case kNvlinkUncorrectable:
    case kContained:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kContextIsDestroyed:
    case kAssert:
    case kTensorMemoryLeak:
    case kMpsClientTerminated: return true;
    default: return answer >= kHardwareStackError && answer <= kLaunchFailed;
  }
}

tl::unexpected<Error> fail_answer(const Functions& calls, std::string_view call, Answer answer) {
  const char* name = nullptr;
  const char* text = nullptr;
  if (calls.cuGetErrorName == nullptr || calls.cuGetErrorName(answer, &name) != kSuccess) name = nullptr;
  if (calls.cuGetErrorString == nullptr || calls.cuGetErrorString(answer, &text) != kSuccess) text = nullptr;
  return fail(code_of(answer),
              format("{}: {}: {}", call, name == nullptr ? format("answer {}", answer) : std::string(name),
                     text == nullptr ? "the driver has no words for it" : text));
}

}  // namespace freshet::gpu::driver
