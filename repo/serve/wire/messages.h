// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The messages between a repository's server and its clients: FlatBuffers (rpc.fbs), verified before use. A message is
/// a struct of questions.h. Its function fields(struct, visitor) names the struct's fields in their order, so one
/// visitor, the Writer, makes a message of it, and another one, the Reader, reads it back and checks what the verifier
/// cannot: that numbers fit, names, counts, codes. For this folder and those that add questions to it.

#include <flatbuffers/flatbuffers.h>

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/base/clock.h"
#include "core/base/result.h"
#include "core/model/tensor.h"
#include "repo/serve/wire/rpc_generated.h"

namespace freshet::rpc {

inline constexpr std::uint32_t kProtocolVersion = 5;

/// A manifest and an architecture, the largest of both, and what else a message says.
inline constexpr std::size_t kMessageBytesMax = std::size_t{192} << 20;
inline constexpr std::size_t kTextBytesMax = std::size_t{1} << 16;
inline constexpr std::size_t kRangesMax = std::size_t{1} << 16;
/// The limit of one AskBytes; a client that wants more asks more often.
inline constexpr std::uint64_t kDataBytesMax = std::uint64_t{4} << 20;
inline constexpr std::size_t kSignedTensorsMax = 256;  ///< Of one SignReads.
inline constexpr std::uint64_t kChunkBytesMax = std::uint64_t{1} << 20;
/// Of the tensors that come with a put's question, together.
inline constexpr std::uint64_t kGivenBytesMax = std::uint64_t{32} << 10;

using Builder = flatbuffers::FlatBufferBuilder;
using Encoded = flatbuffers::DetachedBuffer;
template <typename T>
using Offset = flatbuffers::Offset<T>;

/// Whether the texts, with what each takes, are no longer than the message. So none of them is there again and again,
/// and a small message cannot become a large value.
bool has_each_text_once(const wire::Said* said, std::size_t message_bytes);

/// A message of the other side, verified. Movable; what is read from it points into it.
template <typename Root>
class Received {
 public:
  /// corrupt when it is no such message.
  static Result<Received> open(Bytes bytes) {
    if (bytes.size() > kMessageBytesMax) return fail(Code::corrupt, "a message is too long");
    Received received;
    // The verifier measures alignment from the first byte, so this one must be aligned itself.
    received.words_.resize((bytes.size() + sizeof(std::uint64_t) - 1) / sizeof(std::uint64_t));
    if (!bytes.empty()) std::memcpy(received.words_.data(), bytes.data(), bytes.size());
    const auto* const data = reinterpret_cast<const std::uint8_t*>(received.words_.data());
    flatbuffers::Verifier verifier(data, bytes.size(), /*max_depth=*/4, /*max_tables=*/4);
    if (bytes.size() < kShortest || !verifier.VerifyBuffer<Root>(nullptr)) {
      return fail(Code::corrupt, "a message is not of this protocol");
    }
    received.root_ = flatbuffers::GetRoot<Root>(data);
    if (!has_each_text_once(received.said(), bytes.size())) {
      return fail(Code::corrupt, "a message uses the same bytes for several texts");
    }
    return received;
  }
  const Root* operator->() const { return root_; }
  const Root& operator*() const { return *root_; }
  /// Null in a greeting and in a failure.
  const wire::Said* said() const { return root_->body_as_Said(); }
  /// 0 where nothing is said.
  std::uint16_t verb() const { return said() == nullptr ? std::uint16_t{0} : said()->verb(); }
  /// The memory that it takes.
  std::size_t bytes() const { return words_.size() * sizeof(std::uint64_t); }

 private:
  static constexpr std::size_t kShortest = 2 * sizeof(flatbuffers::uoffset_t) + sizeof(flatbuffers::soffset_t);
  std::vector<std::uint64_t> words_;
  const Root* root_ = nullptr;
};

/// A field that is one word: numbers, flags, and codes, which visitors take by choice().
template <typename T>
concept Word = std::integral<T>;
/// `A` is T, or a T that is only read.
template <typename A, typename T>
concept Like = std::same_as<std::remove_const_t<A>, T>;

/// Takes the fields of a struct, and makes a message of them.
class Writer {
 public:
  template <typename... Fields>
  void operator()(const Fields&... values) {
    (put(values), ...);
  }
  template <typename Enum>
  void choice(const Enum& value, Enum) {
    put(static_cast<std::uint8_t>(value));
  }
  // These two are for the Reader.
  template <typename T>
  void list(const std::vector<T>& values, std::size_t, Code = {}) {
    put(values);
  }
  template <typename Check>
  void check(Check) {}
  void data(Bytes bytes) {
    attach(builder_.CreateVector(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()));
  }

  /// For data that is made in its place: builder() makes the vector, before attach() and before anything is written.
  Builder& builder() { return builder_; }
  void attach(Offset<flatbuffers::Vector<std::uint8_t>> data) { data_ = data; }

  Encoded request(std::uint64_t number, std::uint16_t verb) &&;
  Encoded reply(std::uint64_t number, std::uint16_t verb) &&;

 private:
  void put(Word auto value) { words_.push_back(static_cast<std::uint64_t>(value)); }
  void put(double value) { words_.push_back(std::bit_cast<std::uint64_t>(value)); }
  void put(Duration value) { put(std::max(value, Duration::zero()).count()); }
  void put(std::string_view text) {
    texts_.push_back(builder_.CreateString(text.empty() ? "" : text.data(), text.size()));
  }
  void put(const std::string& text) { put(std::string_view(text)); }
  void put(Bytes bytes) { put(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size())); }
  template <typename T>
  void put(const std::optional<T>& value) {
    put(value.has_value());
    if (value) put(*value);
  }
  template <typename A, typename B>
  void put(const std::pair<A, B>& both) {
    put(both.first);
    put(both.second);
  }
  template <typename T>
  void put(const std::vector<T>& list) {
    put(list.size());
    for (const T& one : list) put(one);
  }
  template <typename T>
  requires std::is_class_v<T>
  void put(const T& value) {
    if constexpr (requires { T::fields(value, *this); }) {
      T::fields(value, *this);
    } else {
      fields(value, *this);
    }
  }
  Offset<wire::Said> said(std::uint16_t verb);

  Builder builder_;
  std::vector<std::uint64_t> words_;
  std::vector<Offset<flatbuffers::String>> texts_;
  Offset<flatbuffers::Vector<std::uint8_t>> data_;
};

/// Gives the fields of a struct what a message says. A field that the message ends before keeps its default, so that a
/// message may get fields at its end; within a list that is an error. After an error it reads nothing more.
class Reader {
 public:
  explicit Reader(const wire::Said& said) : said_(said) {}
  template <typename... Fields>
  void operator()(Fields&... values) {
    (take(values), ...);
  }
  /// unsupported for a code after the last one that is known.
  template <typename Enum>
  void choice(Enum& value, Enum last) {
    std::uint8_t code = static_cast<std::uint8_t>(value);
    take(code);
    if (code > static_cast<std::uint8_t>(last)) {
      return refuse(Error(Code::unsupported, "a message has a code that this build does not know"));
    }
    value = static_cast<Enum>(code);
  }
  /// A list of at most so many; a longer one is not copied.
  template <typename T>
  void list(std::vector<T>& values, std::size_t most, Code above = Code::invalid_argument) {
    take_rows(values, count(most, above));
  }
  /// `look()` is a Status of what was read so far.
  template <typename Check>
  void check(Check look) {
    if (!status_) return;
    if (Status looked = look(); !looked) refuse(std::move(looked).error());
  }
  /// Points into the message.
  void data(Bytes& bytes) {
    if (said_.data() != nullptr) bytes = std::as_bytes(std::span(said_.data()->data(), said_.data()->size()));
  }
  const Status& status() const { return status_; }

 private:
  void refuse(Error error);
  std::optional<std::uint64_t> word();
  /// Points into the message.
  std::optional<std::string_view> text();
  /// Of a list: 0 for one that cannot be in this message, or has more.
  std::uint64_t count(std::size_t most, Code above);

  template <Word T>
  void take(T& value) {
    const auto said = word();
    if (!said) return;
    if (static_cast<std::uint64_t>(static_cast<T>(*said)) != *said) {
      return refuse(Error(Code::corrupt, "a message has a number that is too large"));
    }
    value = static_cast<T>(*said);
  }
  void take(double& value) {
    if (const auto said = word()) value = std::bit_cast<double>(*said);
  }
  void take(Duration& value) {
    constexpr auto kMost = std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    if (const auto said = word()) value = Duration(static_cast<std::int64_t>(std::min(*said, kMost)));
  }
  void take(std::string& value) {
    if (const auto said = text()) value = *said;
  }
  void take(Bytes& value) {
    if (const auto said = text()) value = std::as_bytes(std::span(said->data(), said->size()));
  }
  template <typename T>
  void take(std::optional<T>& value) {
    bool is_there = false;
    take(is_there);
    if (is_there) take(value.emplace());
  }
  template <typename A, typename B>
  void take(std::pair<A, B>& both) {
    take(both.first);
    take(both.second);
  }
  template <typename T>
  void take(std::vector<T>& list) {
    take_rows(list, count(std::numeric_limits<std::size_t>::max(), Code::corrupt));
  }
  template <typename T>
  void take_rows(std::vector<T>& list, std::uint64_t rows) {
    ++lists_;
    for (std::uint64_t i = 0; i < rows && status_; ++i) take(list.emplace_back());
    --lists_;
  }
  template <typename T>
  requires std::is_class_v<T>
  void take(T& value) {
    if constexpr (requires { T::fields(value, *this); }) {
      T::fields(value, *this);
    } else {
      fields(value, *this);
    }
  }

  const wire::Said& said_;
  std::uint32_t words_read_ = 0;
  std::uint32_t texts_read_ = 0;
  int lists_ = 0;  ///< That are being read, one within another.
  Status status_;
};

Encoded hello(std::uint64_t number, std::uint32_t protocol = kProtocolVersion);
Encoded failure(std::uint64_t number, const Error& error);
Error error_of(const wire::Failure& failure);

template <typename T>
Result<T> read(const wire::Said& said) {
  T value;
  Reader reader(said);
  reader(value);
  FRESHET_TRY(reader.status());
  return value;
}

}  // namespace freshet::rpc
