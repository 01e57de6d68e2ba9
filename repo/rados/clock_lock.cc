// SPDX-License-Identifier: Apache-2.0
#include "repo/rados/clock_lock.h"

#include <algorithm>

namespace freshet::rados {
namespace {

constexpr std::string_view kName = "now";
constexpr std::uint32_t kLockSeconds = 10;
constexpr char kShared = 2;
constexpr char kMayRenew = 1;

// Ceph's encoding: numbers with the low byte first; texts after their length; structures after a version, the oldest
// version that reads them, and their length.

void append_number(std::string& to, std::uint32_t number) {
  for (int shift = 0; shift < 32; shift += 8) to.push_back(static_cast<char>(number >> shift));
}
void append_text(std::string& to, std::string_view text) {
  append_number(to, static_cast<std::uint32_t>(text.size()));
  to.append(text);
}
std::string as_structure(const std::string& body) {
  std::string all = {1, 1};
  append_text(all, body);
  return all;
}

class LockReader {
 public:
  explicit LockReader(std::string_view text) : text_(text) {}
  std::string_view bytes(std::size_t count) {
    is_good_ = is_good_ && count <= text_.size();
    if (!is_good_) return {};
    const std::string_view taken = text_.substr(0, count);
    text_.remove_prefix(count);
    return taken;
  }
  std::uint32_t number() {
    std::uint32_t value = 0;
    int shift = 0;
    for (const char c : bytes(4)) {
      value |= std::uint32_t{static_cast<unsigned char>(c)} << shift;
      shift += 8;
    }
    return value;
  }
  /// A structure's body; it may have more at its end than this version knows.
  LockReader structure() {
    bytes(2);
    return LockReader(bytes(number()));
  }
  bool is_good() const { return is_good_; }

 private:
  std::string_view text_;
  bool is_good_ = true;
};

}  // namespace

std::string clock_lock_request(std::string_view cookie) {
  std::string body;
  append_text(body, kName);
  body.push_back(kShared);
  append_text(body, cookie);
  append_text(body, "");         // Tag.
  append_text(body, "Freshet");  // Description.
  append_number(body, kLockSeconds);
  append_number(body, 0);  // Nanoseconds.
  body.push_back(kMayRenew);
  return as_structure(body);
}

std::string clock_lock_question() {
  std::string body;
  append_text(body, kName);
  return as_structure(body);
}

std::optional<std::int64_t> time_of_clock_lock(std::string_view answer) {
  LockReader reader = LockReader(answer).structure();
  std::uint32_t last = 0;
  for (std::uint32_t holders = reader.number(); holders > 0 && reader.is_good(); --holders) {
    reader.structure();                      // The holder.
    LockReader holder = reader.structure();  // Begins with the lock's end.
    last = std::max(last, holder.number());
  }
  if (!reader.is_good() || last <= kLockSeconds) return std::nullopt;
  return std::int64_t{last} - kLockSeconds;
}

}  // namespace freshet::rados
