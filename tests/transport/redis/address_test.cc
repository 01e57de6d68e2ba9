// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "transport/directory/directory.h"
#include "transport/redis/address.h"

namespace freshet {
namespace {

TEST(RedisAddress, IsReadAsPeopleWriteIt) {
  auto address = RedisAddress::parse("redis://10.0.0.7");
  ASSERT_TRUE(address) << address.error().message();
  EXPECT_EQ(address->host, "10.0.0.7");
  EXPECT_EQ(address->port, 6379);
  EXPECT_EQ(address->database, 0U);

  address = RedisAddress::parse("redis://:se%40cret%3a@db.example:7000/12");
  ASSERT_TRUE(address) << address.error().message();
  EXPECT_EQ(address->host, "db.example");
  EXPECT_EQ(address->port, 7000);
  EXPECT_EQ(address->password, "se@cret:");
  EXPECT_EQ(address->database, 12U);
  EXPECT_EQ(address->text(), "redis://db.example:7000/12");

  address = RedisAddress::parse("redis://me:p@ss@[::1]:7000");
  ASSERT_TRUE(address) << address.error().message();
  EXPECT_EQ(address->user, "me");
  EXPECT_EQ(address->password, "p@ss");
  EXPECT_EQ(address->host, "::1");
  EXPECT_EQ(address->text(), "redis://[::1]:7000/0");

  address = RedisAddress::parse("redis+unix://:secret@/run/redis.sock?db=3");
  ASSERT_TRUE(address) << address.error().message();
  EXPECT_EQ(address->path, "/run/redis.sock");
  EXPECT_EQ(address->database, 3U);
  EXPECT_EQ(address->text(), "redis+unix:///run/redis.sock?db=3");
}

TEST(RedisAddress, BadOnesAreRefusedWithoutTellingThePassword) {
  for (const char* text :
       {"redis://", "redis://:hunter2@", "redis://:hunter2@host:0", "redis://:hunter2@host:65536",
        "redis://:hunter2@host:", "redis://:hunter2@host:12x", "redis://:hunter2@host/x", "redis://:hunter2@host/1/2",
        "redis://hunter2@host", "redis://:hunter2%2@host", "redis://:hunter2%zz@host", "redis://:@host",
        "redis://:hunter2@[::1", "redis://:hunter2@ho st", "redis://:hunter2@host\n", "redis+unix://:hunter2@path",
        "redis+unix:///run/x?password=hunter2", "rediss://:hunter2@host"}) {
    const auto address = open_directory(text);
    ASSERT_FALSE(address) << text;
    EXPECT_EQ(address.error().code(),
              std::string_view(text).starts_with("rediss") ? Code::unsupported : Code::invalid_argument)
        << text;
    EXPECT_EQ(address.error().message().find("hunter2"), std::string::npos) << address.error().message();
    EXPECT_EQ(address.error().message().find('\n'), std::string::npos);
  }
  EXPECT_FALSE(RedisAddress::parse("redis://" + std::string(10'000, 'a')));
}

TEST(RedisAddress, TlsIsRefusedWithAWayOut) {
  const auto address = RedisAddress::parse("rediss://host");
  ASSERT_FALSE(address);
  EXPECT_NE(address.error().message().find("no TLS"), std::string::npos) << address.error().message();
}

}  // namespace
}  // namespace freshet
