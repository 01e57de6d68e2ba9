// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/safetensors.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/base/file_io.h"
#include "core/base/format.h"
#include "core/host/memory_room.h"

namespace freshet {
namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::size_t kSharedReadBytesMin = std::size_t{64} << 20;

/// The header's text, which the file's first eight bytes give the length of. `cut_off` is what a file that ends before
/// its header does is called.
Result<std::string> read_header(int descriptor, std::uint64_t file_bytes, Code cut_off) {
  if (file_bytes < kLengthBytes) {
    return fail(cut_off, format("{} bytes are too few for a safetensors file", file_bytes));
  }
  std::byte length[kLengthBytes];
  FRESHET_TRY(read_at(descriptor, length, 0, "it", Code::unavailable));
  const auto bytes = load_little_endian<std::uint64_t>(length);
  if (bytes > kSafetensorsHeaderBytesMax) {
    return fail(Code::corrupt, format("not a safetensors file: its header would have {} bytes, over the limit of {}",
                                      bytes, kSafetensorsHeaderBytesMax));
  }
  if (bytes > file_bytes - kLengthBytes) {
    return fail(cut_off, format("its header would have {} bytes, the file has {}", bytes, file_bytes));
  }
  std::string text(bytes, '\0');
  FRESHET_TRY(read_at(descriptor, std::as_writable_bytes(std::span(text)), kLengthBytes, "it", Code::unavailable));
  return text;
}

/// read_at() by two threads, where there is much to read: new memory is found and cleared page by page, which takes as
/// long as the copy into it.
Status read_shared(int descriptor, MutableBytes out, std::uint64_t offset) {
  const std::size_t half = out.size() < kSharedReadBytesMin ? out.size() : out.size() / 2;
  Status second;
  const auto read_second = [&] {
    second = read_at(descriptor, out.subspan(half), offset + half, "it", Code::unavailable);
  };
  std::jthread helper;
  try {
    if (half < out.size()) helper = std::jthread(read_second);
  } catch (const std::system_error&) {
    read_second();  // No thread is left.
  }
  FRESHET_TRY(read_at(descriptor, out.first(half), offset, "it", Code::unavailable));
  if (helper.joinable()) helper.join();
  return second;
}

Status check_is_whole(int descriptor, std::uint64_t file_bytes) {
  FRESHET_ASSIGN(const std::string text, read_header(descriptor, file_bytes, Code::unavailable));
  FRESHET_ASSIGN(const std::uint64_t promised, data_bytes_of_safetensors_header(text));
  const std::uint64_t there = file_bytes - kLengthBytes - text.size();
  if (there == promised) return {};
  return fail(there < promised ? Code::unavailable : Code::corrupt,
              format("its header promises {} bytes of tensors, {} are there", promised, there));
}

struct HeaderOfFile {
  SafetensorsHeader header;
  std::uint64_t data_begin = 0;
  std::uint64_t data_bytes = 0;
};
Result<HeaderOfFile> header_of(const OpenedFile& file) {
  const auto file_bytes = static_cast<std::uint64_t>(file.status.st_size);
  FRESHET_ASSIGN(const std::string text, read_header(file.descriptor.get(), file_bytes, Code::corrupt));
  HeaderOfFile answer{.header = {}, .data_begin = kLengthBytes + text.size(), .data_bytes = 0};
  answer.data_bytes = file_bytes - answer.data_begin;
  FRESHET_ASSIGN(answer.header, parse_safetensors_header(text, answer.data_bytes));
  return answer;
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::read(const std::string& path) {
  FRESHET_ASSIGN(const OpenedFile opened, open_regular(path));
  SafetensorsFile file;
  if (Status copied = file.copy_from(opened); !copied) return fail(std::move(copied).error().with_context(path));
  FRESHET_TRY(freshet::check_unchanged(opened, path));
  return file;
}

Status SafetensorsFile::copy_from(const OpenedFile& opened) {
  FRESHET_ASSIGN(HeaderOfFile header, header_of(opened));
  FRESHET_TRY(take_memory(header.data_bytes));
  const MutableBytes memory(static_cast<std::byte*>(memory_), memory_bytes_);
  take_views(std::move(header.header), memory);
  return read_shared(opened.descriptor.get(), memory, header.data_begin);
}

Result<SafetensorsFile> SafetensorsFile::map(const std::string& path) {
  FRESHET_ASSIGN(OpenedFile opened, open_regular(path));
  Result<HeaderOfFile> header = header_of(opened);
  if (!header) return fail(std::move(header).error().with_context(path));
  Result<std::unique_ptr<MappedFile>> mapped = MappedFile::map(std::move(opened), path);
  if (!mapped) return read(path);
  SafetensorsFile file;
  file.mapped_ = *std::move(mapped);
  file.take_views(std::move(header->header), file.mapped_->bytes().subspan(header->data_begin));
  return file;
}

Status SafetensorsFile::check_unchanged() const { return mapped_ != nullptr ? mapped_->check_unchanged() : Status(); }

Status SafetensorsFile::take_memory(std::uint64_t bytes) {
  FRESHET_TRY(check_memory_room(bytes));
  if (bytes == 0) return {};
  void* const memory =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) return fail_errno(errno, format("{} bytes of memory", bytes));
  memory_ = memory;
  memory_bytes_ = bytes;
  return {};
}

void SafetensorsFile::take_views(SafetensorsHeader header, Bytes data) {
  tensors_.reserve(header.entries.size());
  for (SafetensorsHeader::Entry& entry : header.entries) {
    tensors_.push_back({.spec = std::move(entry.spec), .data = data.subspan(entry.begin, entry.end - entry.begin)});
  }
  metadata_ = std::move(header.metadata);
}

MutableBytes SafetensorsFile::memory_of(std::size_t tensor) {
  FRESHET_CHECK(tensor < tensors_.size() && mapped_ == nullptr);
  const Bytes view = tensors_[tensor].data;
  if (view.empty()) return {};
  return {static_cast<std::byte*>(memory_) + (view.data() - static_cast<const std::byte*>(memory_)), view.size()};
}

Status check_is_whole_safetensors(const std::string& path) {
  FRESHET_ASSIGN(const OpenedFile file, open_regular(path));
  Status whole = check_is_whole(file.descriptor.get(), static_cast<std::uint64_t>(file.status.st_size));
  if (!whole) return fail(std::move(whole).error().with_context(path));
  return {};
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : mapped_(std::move(other.mapped_)),
      memory_(std::exchange(other.memory_, nullptr)),
      memory_bytes_(std::exchange(other.memory_bytes_, 0)),
      tensors_(std::move(other.tensors_)),
      metadata_(std::move(other.metadata_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  mapped_.swap(other.mapped_);
  std::swap(memory_, other.memory_);
  std::swap(memory_bytes_, other.memory_bytes_);
  tensors_.swap(other.tensors_);
  metadata_.swap(other.metadata_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

}  // namespace freshet
