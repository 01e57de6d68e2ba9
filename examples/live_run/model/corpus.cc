// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/model/corpus.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>

#include "core/base/format.h"

namespace freshet::live {
namespace {

constexpr std::size_t kPieceBytes = 2048;
constexpr std::size_t kPiecesPerHeldOut = 10;
constexpr std::size_t kFirstHeldOut = 1;

/// Tabs, line ends, form feeds and escapes occur in text; other control characters hardly do.
bool is_odd(std::uint8_t byte) {
  if (byte >= 0x20) return byte == 0x7F;
  return !(byte >= '\t' && byte <= '\r') && byte != 0x1B;
}

Result<Text> read_file(const std::string& path, std::uint64_t bytes_left) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found) {
    return fail(Code::not_found, format("text {}: no such file", path));
  }
  if (std::filesystem::is_directory(status)) {
    return fail(Code::invalid_argument, format("text {}: is a folder, not a file", path));
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return fail_errno(errno, format("text {}", path));
  Text text;
  std::vector<char> piece(1 << 16);
  while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
    text.insert(text.end(), piece.begin(), piece.begin() + file.gcount());
    if (text.size() > bytes_left) {
      return fail(Code::invalid_argument, format("text {}: more than {} bytes of text", path, kTextBytesMax));
    }
  }
  if (file.bad()) return fail(Code::io_error, format("text {}: cannot be read", path));
  return text;
}

}  // namespace

Result<std::vector<std::string>> default_text_files() {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(kLicenceFolder, error), end; !error && it != end; it.increment(error)) {
    if (it->is_regular_file(error) && !it->is_symlink(error)) files.push_back(it->path().string());
  }
  if (files.empty()) {
    return fail(Code::not_found,
                format("text {}: no licence texts there; name other text with --text", kLicenceFolder));
  }
  std::sort(files.begin(), files.end());
  return files;
}

Status check_is_text(const std::string& name, const Text& bytes) {
  if (bytes.empty()) return fail(Code::invalid_argument, format("text {}: is empty", name));
  const auto zero = std::find(bytes.begin(), bytes.end(), 0);
  if (zero != bytes.end()) {
    return fail(Code::invalid_argument,
                format("text {}: is binary, not text (a zero byte at {})", name, zero - bytes.begin()));
  }
  const auto odd = static_cast<std::size_t>(std::count_if(bytes.begin(), bytes.end(), is_odd));
  if (odd * 50 > bytes.size()) {
    return fail(Code::invalid_argument,
                format("text {}: is binary, not text ({} control characters in {} bytes)", name, odd, bytes.size()));
  }
  return {};
}

Result<Corpus> read_corpus(const std::vector<std::string>& files) {
  Corpus corpus;
  std::uint64_t total = 0;
  for (const std::string& file : files) {
    FRESHET_ASSIGN(const Text text, read_file(file, kTextBytesMax - total));
    FRESHET_TRY(check_is_text(file, text));
    total += text.size();
    const Corpus parts = split(text);
    corpus.training.insert(corpus.training.end(), parts.training.begin(), parts.training.end());
    corpus.held_out.insert(corpus.held_out.end(), parts.held_out.begin(), parts.held_out.end());
  }
  if (total < kTextBytesMin || corpus.held_out.size() < kPieceBytes / 4) {
    return fail(Code::invalid_argument,
                format("text {}: {} bytes are too little to train on and hold some out; at least "
                       "{} in one file are needed",
                       files.empty() ? "" : files.front(), total, kTextBytesMin));
  }
  return corpus;
}

Corpus split(const Text& text) {
  Corpus corpus;
  for (std::size_t begin = 0, piece = 0; begin < text.size(); begin += kPieceBytes, ++piece) {
    const std::size_t end = std::min(begin + kPieceBytes, text.size());
    Text& part = piece % kPiecesPerHeldOut == kFirstHeldOut ? corpus.held_out : corpus.training;
    part.insert(part.end(), text.begin() + static_cast<std::ptrdiff_t>(begin),
                text.begin() + static_cast<std::ptrdiff_t>(end));
  }
  return corpus;
}

}  // namespace freshet::live
