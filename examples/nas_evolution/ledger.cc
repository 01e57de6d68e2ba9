// SPDX-License-Identifier: Apache-2.0
#include "examples/nas_evolution/ledger.h"

#include <fcntl.h>
#include <sodium.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/base/format.h"

namespace freshet::nas {
namespace {

std::string sum_of(const Candidate& candidate) {
  std::vector<TensorView> views = candidate.views(false);
  std::ranges::sort(views, {}, [](const TensorView& view) { return view.spec.name; });
  crypto_hash_sha256_state state;
  crypto_hash_sha256_init(&state);
  const auto add = [&state](const void* bytes, std::size_t count) {
    crypto_hash_sha256_update(&state, static_cast<const unsigned char*>(bytes), count);
  };
  for (const TensorView& view : views) {
    add(view.spec.name.c_str(), view.spec.name.size() + 1);
    add(view.data.data(), view.data.size());
  }
  std::array<unsigned char, crypto_hash_sha256_BYTES> sum{};
  crypto_hash_sha256_final(&state, sum.data());
  std::string text;
  for (const unsigned char byte : sum) text += format("{:02x}", byte);
  return text;
}

/// One write() for a line: lines of several threads do not mix.
Status append(const FileDescriptor& file, const std::string& line) {
  const ssize_t written = ::write(file.get(), line.data(), line.size());
  if (written == static_cast<ssize_t>(line.size())) return {};
  return written < 0 ? fail_errno(errno, "write the ledger") : fail(Code::io_error, "write the ledger: cut short");
}

}  // namespace

Result<Ledger> Ledger::open(const std::string& path) {
  FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file) return fail_errno(errno, "open the ledger " + path);
  return Ledger(std::move(file));
}

Status Ledger::stored(const VersionName& version, const Candidate& candidate) const {
  return append(file_, format("{{\"stored\": \"{}\", \"sha256\": \"{}\"}}\n", to_string(version), sum_of(candidate)));
}

Status Ledger::retiring(const VersionName& version) const {
  return append(file_, format("{{\"retiring\": \"{}\"}}\n", to_string(version)));
}

}  // namespace freshet::nas
