// SPDX-License-Identifier: Apache-2.0
// What can be said of the driver's part without a driver.
#include "core/gpu/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "core/gpu/device.h"

namespace freshet::gpu {
namespace {

using testing::HasSubstr;

TEST(GpuDriverTable, AMissingLibraryIsUnavailable) {
  const auto refused = driver::open_driver("libfreshet-no-driver.so.1");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("no libfreshet-no-driver.so.1 here"));
}

TEST(GpuDriverTable, AnotherLibraryIsUnavailable) {
  const auto refused = driver::open_driver("libm.so.6");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("libm.so.6 has no function cuInit"));
}

TEST(GpuDriverTable, AnOldDriverIsNamedWithItsVersion) {
  EXPECT_TRUE(driver::check_driver_version(13000, "580.159.03"));
  EXPECT_TRUE(driver::check_driver_version(13010, ""));
  const auto refused = driver::check_driver_version(12080, "570.86.15");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), Code::unavailable);
  EXPECT_THAT(refused.error().message(), HasSubstr("driver 570.86.15, CUDA 12.8 is too old"));
  EXPECT_THAT(refused.error().message(), HasSubstr("needs driver 580 or later"));
  EXPECT_THAT(driver::check_driver_version(11040, "").error().message(), HasSubstr("driver of CUDA 11.4 is too old"));
}

TEST(GpuDriverTable, AnswersBecomeCodes) {
  EXPECT_EQ(driver::code_of(driver::kOutOfMemory), Code::out_of_space);
  EXPECT_EQ(driver::code_of(driver::kInvalidValue), Code::invalid_argument);
  EXPECT_EQ(driver::code_of(driver::kInvalidHandle), Code::invalid_argument);
  EXPECT_EQ(driver::code_of(driver::kNoDevice), Code::unavailable);
  EXPECT_EQ(driver::code_of(driver::kStubLibrary), Code::unavailable);
  EXPECT_EQ(driver::code_of(driver::kSystemNotReady), Code::unavailable);
  EXPECT_EQ(driver::code_of(driver::kNoBinaryForGpu), Code::unsupported);
  EXPECT_EQ(driver::code_of(driver::kHostMemoryAlreadyRegistered), Code::already_exists);
  EXPECT_EQ(driver::code_of(driver::kHostMemoryNotRegistered), Code::not_found);
  EXPECT_EQ(driver::code_of(driver::kStreamCaptureUnsupported + 6), Code::failed_precondition);
  EXPECT_EQ(driver::code_of(driver::kIllegalAddress), Code::failed_precondition);
  EXPECT_EQ(driver::code_of(999), Code::io_error);
}

TEST(GpuDriverTable, OnlyWhatTheDriverRefusesIsTheSendersFault) {
  for (const Code code : {Code::invalid_argument, Code::not_found}) {
    const Error error = driver::as_senders_fault({code, "CUDA_ERROR"});
    EXPECT_EQ(error.code(), Code::corrupt);
    EXPECT_EQ(error.message(), "not such a slab: CUDA_ERROR");
  }
  for (const Code code : {Code::io_error, Code::unsupported, Code::timed_out, Code::out_of_space, Code::unavailable,
                          Code::failed_precondition, Code::already_exists}) {
    const Error error = driver::as_senders_fault({code, "CUDA_ERROR"});
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.message(), "CUDA_ERROR");
  }
}

TEST(GpuDriverTable, ErrorsOfAContextStick) {
  for (const driver::Answer answer :
       {driver::kIllegalAddress, driver::kEccUncorrectable, driver::kAssert, driver::kLaunchFailed,
        driver::kHardwareStackError, driver::kHardwareStackError + 2, driver::kContextIsDestroyed}) {
    EXPECT_TRUE(driver::sticks(answer)) << answer;
  }
  for (const driver::Answer answer :
       {driver::kSuccess, driver::kNotReady, driver::kOutOfMemory, driver::kInvalidValue,
        driver::kHostMemoryAlreadyRegistered, driver::kHostMemoryNotRegistered, driver::Answer{720}}) {
    EXPECT_FALSE(driver::sticks(answer)) << answer;
  }
}

TEST(GpuDriverTable, AnErrorWithoutADriversWordsHasItsNumber) {
  const Error error = driver::fail_answer({}, "cuMemCreate", 2).value();
  EXPECT_EQ(error.message(), "cuMemCreate: answer 2: the driver has no words for it");
  EXPECT_EQ(error.code(), Code::out_of_space);
}

/// A thread that captures a graph itself goes on in its own mode.
TEST(GpuDriverTable, TheThreadsCaptureModeComesBack) {
  static unsigned int mode = 0;
  static driver::Answer answer = driver::kSuccess;
  driver::Functions calls;
  calls.cuThreadExchangeStreamCaptureMode = [](unsigned int* given) {
    if (answer == driver::kSuccess) std::swap(*given, mode);
    return answer;
  };
  {
    const driver::RelaxedCapture outer(calls);
    EXPECT_EQ(mode, driver::kCaptureModeRelaxed);
    const driver::RelaxedCapture inner(calls);
    EXPECT_EQ(mode, driver::kCaptureModeRelaxed);
  }
  EXPECT_EQ(mode, 0U);
  answer = driver::kDeinitialized;
  EXPECT_EQ(driver::RelaxedCapture(calls).answer(), driver::kDeinitialized);
  EXPECT_EQ(mode, 0U);
}

TEST(GpuDriverTable, AMachineWithoutADriverSaysWhy) {
  const auto platform = open_driver_platform();
  if (platform) GTEST_SKIP() << "this machine has a driver: " << (*platform)->description();
  EXPECT_EQ(platform.error().code(), Code::unavailable);
  EXPECT_THAT(platform.error().message(), HasSubstr("open the NVIDIA driver: "));
}

}  // namespace
}  // namespace freshet::gpu
