// SPDX-License-Identifier: Apache-2.0
#include "transport/security/keys.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet {
namespace {

constexpr std::string_view kSecretWord = "curve-secret ";
constexpr std::string_view kOperatorWord = "operator";
constexpr std::string_view kPublicSuffix = ".pub";
constexpr std::size_t kKeyFileBytesMax = 4096;

bool says_nothing(std::string_view line) { return line.empty() || line == "#" || line.starts_with("# "); }

std::string_view trimmed(std::string_view text) {
  const auto is_blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// The first line that says something.
std::string_view first_line(std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    if (!says_nothing(line)) return line;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return {};
}

bool is_key(std::string_view text) {
  if (text.size() != kKeyTextBytes) return false;
  std::array<std::uint8_t, kKeyBytes> bytes;
  const std::string terminated(text);
  const bool good = ::zmq_z85_decode(bytes.data(), terminated.c_str()) != nullptr;
  // A number past 2^32 in five characters wraps in some releases of the library: only what encodes back is a key.
  std::array<char, kKeyTextBytes + 1> again;
  const bool same =
      good && ::zmq_z85_encode(again.data(), bytes.data(), bytes.size()) != nullptr && again.data() == text;
  ::explicit_bzero(bytes.data(), bytes.size());
  ::explicit_bzero(again.data(), again.size());
  return same;
}

Status check_secret_status(const std::string& path, const struct stat& status) {
  if ((status.st_mode & 077) != 0 && path.ends_with(".pub")) {
    return fail(Code::invalid_argument, format("key file {} looks like a public key; the secret is wanted, {}", path,
                                               path.substr(0, path.size() - 4)));
  }
  if ((status.st_mode & 077) != 0) {
    return fail(
        Code::invalid_argument,
        format("key file {} has mode {:04o}: others than its owner can use it; chmod 600 it, and make a new key "
               "if somebody may have read it",
               path, status.st_mode & 07777));
  }
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return fail(Code::invalid_argument, format("key file {} belongs to another user", path));
  }
  return {};
}

/// A new file, synced. Removed again when it could not be written.
Status create(const std::string& path, mode_t mode, std::string_view text) {
  const FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (!file) return fail_errno(errno, format("create {}", path));
  Status written = write_all(file.get(), bytes_of(text.data(), text.size()), path);
  if (written && ::fsync(file.get()) != 0) written = fail_errno(errno, format("write {}", path));
  if (!written) ::unlink(path.c_str());
  return written;
}

std::string label_of(const std::string& path) {
  const std::string name = path.substr(path.rfind('/') + 1);
  return check_label("label", name, kKeyLabelBytesMax) ? " " + name : "";
}

}  // namespace

Result<PublicKey> PublicKey::parse(std::string_view what, std::string_view text) {
  if (is_key(text)) return PublicKey(std::string(text));
  return fail(Code::invalid_argument,
              format("{} \"{}\" is not a key of {} characters of Z85", what, shown(text), kKeyTextBytes));
}

Result<PublicKey> PublicKey::of(Bytes bytes) {
  if (bytes.size() != kKeyBytes) return fail(Code::corrupt, format("a public key has {} bytes", bytes.size()));
  std::array<char, kKeyTextBytes + 1> text;
  ::zmq_z85_encode(text.data(), reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
  return PublicKey(std::string(text.data(), kKeyTextBytes));
}

Result<std::optional<KeyLine>> parse_key_line(std::string_view line) {
  line = trimmed(line);
  if (says_nothing(line)) return std::optional<KeyLine>();
  const bool is_operator = line.starts_with(kOperatorWord) && line.find_first_of(" \t") == kOperatorWord.size();
  if (is_operator) line = trimmed(line.substr(kOperatorWord.size()));
  const std::size_t end = std::min(line.find_first_of(" \t"), line.size());
  const std::string_view label = trimmed(line.substr(end));
  // Not the text itself: who lists a secret by mistake should not find it in a log.
  if (!is_key(line.substr(0, end))) {
    return fail(
        Code::invalid_argument,
        "expected a public key (40 characters of Z85), perhaps with the word writer or operator before it, and a "
        "comment begins with \"# \"");
  }
  FRESHET_ASSIGN(PublicKey key, PublicKey::parse("public key", line.substr(0, end)));
  if (!label.empty()) FRESHET_TRY(check_label("label", label, kKeyLabelBytesMax));
  return std::optional<KeyLine>(
      KeyLine{.key = std::move(key), .label = std::string(label), .is_operator = is_operator});
}

KeyPair::~KeyPair() { ::explicit_bzero(secret_.data(), secret_.size()); }

Result<KeyPair> KeyPair::of(const Secret& secret) {
  std::array<char, kKeyTextBytes + 1> text;
  if (::zmq_curve_public(text.data(), secret.data()) != 0) {
    return fail(Code::unsupported, "this build of ZeroMQ has no CURVE");
  }
  FRESHET_ASSIGN(PublicKey key, PublicKey::parse("public key", text.data()));
  return KeyPair(std::move(key), secret);
}

Result<KeyPair> KeyPair::generate() {
  Secret secret;
  std::array<char, kKeyTextBytes + 1> text;
  if (::zmq_curve_keypair(text.data(), secret.data()) != 0) {
    return fail(Code::unsupported, "this build of ZeroMQ has no CURVE");
  }
  Result<KeyPair> pair = of(secret);
  ::explicit_bzero(secret.data(), secret.size());
  return pair;
}

Result<KeyPair> KeyPair::read(const std::string& path) {
  FRESHET_ASSIGN(FileText file, read_file(path, kKeyFileBytesMax));
  FRESHET_TRY(check_secret_status(path, file.status));
  const std::string_view line = first_line(file.text);
  Secret secret{};
  const bool good = line.starts_with(kSecretWord) && is_key(line.substr(kSecretWord.size()));
  if (good) std::copy_n(line.begin() + kSecretWord.size(), kKeyTextBytes, secret.begin());
  ::explicit_bzero(file.text.data(), file.text.size());
  if (!good) {
    return fail(Code::corrupt, format("key file {} has no secret key; `freshet keygen` makes one", path));
  }
  Result<KeyPair> pair = of(secret);
  ::explicit_bzero(secret.data(), secret.size());
  return pair;
}

Status KeyPair::write(const std::string& path) const {
  const std::string public_path = path + std::string(kPublicSuffix);
  // Looked at first, so that the usual mistake leaves nothing behind; O_EXCL decides.
  if (::access(public_path.c_str(), F_OK) == 0) {
    return fail(Code::already_exists, format("{} is there already", public_path));
  }
  std::string text = format("# A secret key of Freshet's. Whoever reads it can pose as its owner.\n{}{}\n", kSecretWord,
                            secret_text());
  const Status created = create(path, 0600, text);
  ::explicit_bzero(text.data(), text.size());
  FRESHET_TRY(created);
  Status public_created = create(public_path, 0644, format("{}{}\n", public_key_.text(), label_of(path)));
  if (!public_created) ::unlink(path.c_str());
  return public_created;
}

Result<PublicKey> read_public_key(const std::string& text_or_path) {
  Result<FileText> file = read_file(text_or_path, kKeyFileBytesMax);
  if (!file && file.error().code() == Code::not_found) {
    Result<PublicKey> key = PublicKey::parse("server key", text_or_path);
    if (key) return key;
    return fail(Code::invalid_argument, key.error().message() + ", nor a file");
  }
  if (!file) return fail(std::move(file).error());
  const std::string_view line = first_line(file->text);
  if (line.starts_with(kSecretWord)) {
    return fail(Code::invalid_argument,
                format("{} is a secret key; the public one is in {}{}", text_or_path, text_or_path, kPublicSuffix));
  }
  Result<std::optional<KeyLine>> parsed = parse_key_line(line);
  if (!parsed) return fail(std::move(parsed).error().with_context(text_or_path));
  if (!*parsed) return fail(Code::invalid_argument, format("{} has no key", text_or_path));
  return std::move((*parsed)->key);
}

}  // namespace freshet
