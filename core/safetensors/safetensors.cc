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

bool is_same_content(const struct stat& before, const struct stat& after) {
  return before.st_size == after.st_size && before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
         before.st_mtim.tv_nsec == after.st_mtim.tv_nsec;
}

Status check_is_whole(int descriptor, std::uint64_t file_bytes) {
  FRESHET_ASSIGN(const std::string text, read_header(descriptor, file_bytes, Code::unavailable));
  FRESHET_ASSIGN(const std::uint64_t promised, data_bytes_of_safetensors_header(text));
  const std::uint64_t there = file_bytes - kLengthBytes - text.size();
  if (there == promised) return {};
  return fail(there < promised ? Code::unavailable : Code::corrupt,
              format("its header promises {} bytes of tensors, {} are there", promised, there));
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::read(const std::string& path) {
  FRESHET_ASSIGN(const OpenedFile opened, open_regular(path));
  SafetensorsFile file;
  Status status = file.read_from(opened.descriptor.get());
  struct stat after {};
  if (status && ::fstat(opened.descriptor.get(), &after) != 0) status = fail_errno(errno, "look at it again");
  if (status && !is_same_content(opened.status, after)) {
    status = fail(Code::unavailable, "the file changed while it was read");
  }
  if (!status) return fail(std::move(status).error().with_context(path));
  return file;
}

Status SafetensorsFile::read_from(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return fail_errno(errno, "look at it");
  const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
  FRESHET_ASSIGN(const std::string text, read_header(descriptor, file_bytes, Code::corrupt));
  FRESHET_TRY(take_header(text, file_bytes - kLengthBytes - text.size()));
  return read_shared(descriptor, MutableBytes(static_cast<std::byte*>(memory_), memory_bytes_),
                     kLengthBytes + text.size());
}

Status SafetensorsFile::take_header(std::string_view json, std::uint64_t data_bytes) {
  FRESHET_ASSIGN(SafetensorsHeader header, parse_safetensors_header(json, data_bytes));
  FRESHET_TRY(check_memory_room(data_bytes));
  if (data_bytes > 0) {
    void* const memory =
        ::mmap(nullptr, data_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, /*fd=*/-1, /*offset=*/0);
    if (memory == MAP_FAILED) return fail_errno(errno, format("{} bytes of memory", data_bytes));
    memory_ = memory;
    memory_bytes_ = data_bytes;
  }
  const Bytes data(static_cast<const std::byte*>(memory_), memory_bytes_);
  tensors_.reserve(header.entries.size());
  for (SafetensorsHeader::Entry& entry : header.entries) {
    tensors_.push_back({.spec = std::move(entry.spec), .data = data.subspan(entry.begin, entry.end - entry.begin)});
  }
  metadata_ = std::move(header.metadata);
  return {};
}

MutableBytes SafetensorsFile::memory_of(std::size_t tensor) {
  FRESHET_CHECK(tensor < tensors_.size());
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
    : memory_(std::exchange(other.memory_, nullptr)),
      memory_bytes_(std::exchange(other.memory_bytes_, 0)),
      tensors_(std::move(other.tensors_)),
      metadata_(std::move(other.metadata_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
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
