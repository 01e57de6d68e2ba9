// SPDX-License-Identifier: Apache-2.0
#include "transport/group/messages.h"

#include <gtest/gtest.h>

#include "tests/support/refused.h"
#include "transport/group/group_generated.h"

namespace freshet::group {
namespace {

Bytes finished(flatbuffers::FlatBufferBuilder& builder, flatbuffers::Offset<wire::Message> message) {
  wire::FinishMessageBuffer(builder, message);
  return {reinterpret_cast<const std::byte*>(builder.GetBufferPointer()), builder.GetSize()};
}

TEST(GroupMessages, AHelloWithManyTextsIsReadBack) {
  Message hello{.kind = Kind::hello, .from = 3};
  for (int i = 0; i < 500; ++i) hello.claims.emplace_back("claim" + std::to_string(i), std::string(100, 'v'));
  hello.peers = {{.address = "tcp://10.0.0.7:41233", .key = std::string(40, 'k'), .host = "h"}};
  const auto read = decode(encode(hello));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(*read, hello);
}

/// Four bytes of the message would be 64 KiB of copies.
TEST(GroupMessages, ATextThatManyPlacesShareIsRefused) {
  const std::string text(1 << 16, 'x');
  for (const bool in_claims : {true, false}) {
    flatbuffers::FlatBufferBuilder builder;
    const auto shared = builder.CreateString(text);
    flatbuffers::Offset<wire::Message> message;
    if (in_claims) {
      const std::vector claims(1000, wire::CreateClaim(builder, shared, shared));
      const auto list = builder.CreateVector(claims);
      message = wire::CreateMessage(builder, 1, wire::Kind::hello, 1, 0, 0, 0, list);
    } else {
      const std::vector peers(1000, wire::CreatePeer(builder, shared, shared, shared));
      const auto list = builder.CreateVector(peers);
      message = wire::CreateMessage(builder, 1, wire::Kind::met, 0, 0, 0, 0, 0, list);
    }
    EXPECT_TRUE(is_refused(decode(finished(builder, message)), Code::corrupt));
  }
}

}  // namespace
}  // namespace freshet::group
