// SPDX-License-Identifier: Apache-2.0
#include "core/gpu/uuid.h"

#include <gtest/gtest.h>

namespace freshet::gpu {
namespace {

TEST(GpuUuid, IsReadAsItIsWritten) {
  const std::string text = "GPU-00ff1234-5678-9abc-def0-0123456789ab";
  const auto uuid = Uuid::parse(text);
  ASSERT_TRUE(uuid);
  EXPECT_EQ(uuid->bytes[1], 0xff);
  EXPECT_EQ(uuid->text(), text);
  EXPECT_EQ(Uuid::parse("00FF1234-5678-9ABC-DEF0-0123456789AB").value(), *uuid);
}

TEST(GpuUuid, ThePrefixOfAMigDeviceIsNamedInTheError) {
  const auto uuid = Uuid::parse("MIG-00ff1234-5678-9abc-def0-0123456789ab");
  ASSERT_FALSE(uuid);
  EXPECT_NE(uuid.error().message().find("write GPU- for MIG-"), std::string::npos) << uuid.error().message();
}

TEST(GpuUuid, OtherTextIsRefused) {
  for (const char* text :
       {"", "GPU-", "GPU-0", "00ff1234-5678-9abc-def0-0123456789a", "00ff1234-5678-9abc-def0-0123456789abc",
        "00ff123405678-9abc-def0-0123456789ab", "0 ff1234-5678-9abc-def0-0123456789ab",
        "-0ff1234-5678-9abc-def0-0123456789ab", "0xff1234-5678-9abc-def0-0123456789ab",
        "GPU-GPU-00ff1234-5678-9abc-def0-0123456789ab", "MIG-00ff1234-5678-9abc-def0-0123456789ab"}) {
    const auto uuid = Uuid::parse(text);
    ASSERT_FALSE(uuid) << text;
    EXPECT_EQ(uuid.error().code(), Code::invalid_argument);
  }
}

}  // namespace
}  // namespace freshet::gpu
