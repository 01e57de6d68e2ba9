// SPDX-License-Identifier: Apache-2.0
#include "repo/serve/wire/messages.h"

#include <unistd.h>

#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::rpc {

namespace {

constexpr std::size_t kTextTakes = 2 * sizeof(flatbuffers::uoffset_t);  ///< Its place and its length.

}  // namespace

bool has_each_text_once(const wire::Said* said, std::size_t message_bytes) {
  if (said == nullptr || said->texts() == nullptr) return true;
  std::size_t bytes = 0;
  for (const flatbuffers::String* text : *said->texts()) bytes += text->size() + kTextTakes;
  return bytes <= message_bytes;
}

Offset<wire::Said> Writer::said(std::uint16_t verb) {
  const auto words = words_.empty() ? Offset<flatbuffers::Vector<std::uint64_t>>() : builder_.CreateVector(words_);
  const auto texts =
      texts_.empty() ? Offset<flatbuffers::Vector<Offset<flatbuffers::String>>>() : builder_.CreateVector(texts_);
  return wire::CreateSaid(builder_, verb, words, texts, data_);
}

Encoded Writer::request(std::uint64_t number, std::uint16_t verb) && {
  const auto body = said(verb);
  builder_.Finish(wire::CreateRequest(builder_, number, wire::Body::Said, body.Union()));
  return builder_.Release();
}

Encoded Writer::reply(std::uint64_t number, std::uint16_t verb) && {
  const auto body = said(verb);
  builder_.Finish(wire::CreateReply(builder_, number, {}, wire::Body::Said, body.Union()));
  return builder_.Release();
}

void Reader::refuse(Error error) {
  if (status_) status_ = fail(std::move(error));
}

std::optional<std::uint64_t> Reader::word() {
  if (!status_) return std::nullopt;
  if (said_.words() == nullptr || words_read_ == said_.words()->size()) {
    if (lists_ != 0) refuse(Error(Code::corrupt, "a message ends in the middle of a list"));
    return std::nullopt;
  }
  std::uint64_t value = 0;  // A vector may lie at any address, whatever the verifier says (2.0.8).
  std::memcpy(&value, said_.words()->Data() + sizeof value * words_read_++, sizeof value);
  return value;
}

std::optional<std::string_view> Reader::text() {
  if (!status_) return std::nullopt;
  if (said_.texts() == nullptr || texts_read_ == said_.texts()->size()) {
    if (lists_ != 0) refuse(Error(Code::corrupt, "a message ends in the middle of a list"));
    return std::nullopt;
  }
  return said_.texts()->Get(texts_read_++)->string_view();
}

std::uint64_t Reader::count(std::size_t most, Code above) {
  const std::uint64_t rows = word().value_or(0);
  const std::uint64_t words_left = said_.words() == nullptr ? 0 : said_.words()->size() - words_read_;
  const std::uint64_t texts_left = said_.texts() == nullptr ? 0 : said_.texts()->size() - texts_read_;
  if (rows > words_left + texts_left) {  // Each has a word or a text.
    refuse(Error(Code::corrupt, "a message has a list that is longer than the message"));
  } else if (rows > most) {
    refuse(Error(above, format("a message has a list of {} entries, more than {}", rows, most)));
  }
  return status_ ? rows : 0;
}

Encoded hello(std::uint64_t number, std::uint32_t protocol) {
  Builder builder;
  const auto label = builder.CreateString("");
  const auto body = wire::CreateHello(builder, protocol, label, ::getpid());
  builder.Finish(wire::CreateRequest(builder, number, wire::Body::Hello, body.Union()));
  return builder.Release();
}

Encoded failure(std::uint64_t number, const Error& error) {
  Builder builder;
  const auto text = builder.CreateString(error.message().substr(0, kTextBytesMax));
  const auto failed = wire::CreateFailure(builder, static_cast<std::uint8_t>(error.code()), text);
  builder.Finish(wire::CreateReply(builder, number, failed));
  return builder.Release();
}

Error error_of(const wire::Failure& failure) {
  const bool known = failure.code() <= static_cast<std::uint8_t>(Code::io_error);
  const std::string text = failure.message() == nullptr ? std::string() : failure.message()->str();
  return Error(known ? static_cast<Code>(failure.code()) : Code::io_error, shown(text, kTextBytesMax));
}

}  // namespace freshet::rpc
