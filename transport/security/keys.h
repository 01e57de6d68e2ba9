// SPDX-License-Identifier: Apache-2.0
#pragma once

/// CURVE keys (Curve25519, as ZeroMQ uses them) and the files that hold them. Keys are written in Z85, ZeroMQ's
/// base-85: 40 characters for 32 bytes.
///
/// A secret file has mode 0600 and one line, "curve-secret KEY". Its public key lies beside it in NAME.pub, in the form
/// of a line of an allow-list ("KEY label"), so that appending the one to the other admits its owner. Lines that are
/// empty, or "#" alone, or begin with "# " say nothing; Z85 has '#' in its alphabet, so a comment needs the blank. In
/// an allow-list a line may be "writer KEY label" or "operator KEY label": its owner may do more than read
/// (transport/security/allow_list.h). The word stands before the key, so that no label, which is the name of somebody's
/// file, can be taken for it.

#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/model/tensor.h"

namespace freshet {

inline constexpr std::size_t kKeyBytes = 32;
inline constexpr std::size_t kKeyTextBytes = 40;
inline constexpr std::size_t kKeyLabelBytesMax = 128;

/// Immutable. Equal keys have equal texts.
class PublicKey {
 public:
  /// invalid_argument unless `text` is a key in Z85; `what` names it in the message.
  static Result<PublicKey> parse(std::string_view what, std::string_view text);
  /// Of what ZeroMQ hands to its authenticator. corrupt unless there are 32 bytes.
  static Result<PublicKey> of(Bytes bytes);

  const std::string& text() const { return text_; }
  friend auto operator<=>(const PublicKey&, const PublicKey&) = default;

 private:
  explicit PublicKey(std::string text) : text_(std::move(text)) {}
  std::string text_;
};

/// A line of an allow-list or of a public file.
struct KeyLine {
  PublicKey key;
  std::string label;
  bool is_operator = false;
};
/// Nothing for a line that says nothing; invalid_argument for a bad one.
Result<std::optional<KeyLine>> parse_key_line(std::string_view line);

/// A secret and its public half. The secret's memory is wiped at the end. One thread at a time.
class KeyPair {
 public:
  KeyPair(const KeyPair&) = default;
  KeyPair& operator=(const KeyPair&) = default;
  ~KeyPair();

  /// A new one. unsupported where ZeroMQ was built without CURVE.
  static Result<KeyPair> generate();

  /// invalid_argument when others than its owner can read the file, or when it belongs to another user than this one
  /// or root; corrupt when it is not a secret file; not_found and other reasons of the system's.
  static Result<KeyPair> read(const std::string& path);

  /// Makes `path` and `path`.pub, durable. already_exists when there is either: a key is never overwritten.
  Status write(const std::string& path) const;

  const PublicKey& public_key() const { return public_key_; }
  /// 40 characters and a zero.
  const char* secret_text() const { return secret_.data(); }

 private:
  using Secret = std::array<char, kKeyTextBytes + 1>;
  static Result<KeyPair> of(const Secret& secret);
  KeyPair(PublicKey public_key, const Secret& secret) : public_key_(std::move(public_key)), secret_(secret) {}

  PublicKey public_key_;
  Secret secret_;
};

/// A publisher's public key as options give it: the name of a public file, or else the key itself.
Result<PublicKey> read_public_key(const std::string& text_or_path);

}  // namespace freshet
