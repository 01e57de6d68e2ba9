#include "core/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/file_descriptor.h"
#include "core/format.h"
#include "core/little_endian.h"

namespace freshet {
namespace {

constexpr std::uint64_t kLengthBytes = 8;

/// The header's text, which the file's first eight bytes give the length of.
Result<std::string_view> header_of(Bytes file) {
  if (file.size() < kLengthBytes) {
    return fail(Code::corrupt, format("{} bytes are too few for a safetensors file", file.size()));
  }
  const std::uint64_t bytes = load_little_endian<std::uint64_t>(file.data());
  if (bytes > kSafetensorsHeaderBytesMax) {
    return fail(Code::corrupt, format("no safetensors file: it would have a header of {} bytes, over the limit of {}",
                                      bytes, kSafetensorsHeaderBytesMax));
  }
  if (bytes > file.size() - kLengthBytes) {
    return fail(Code::corrupt, format("a header of {} bytes in a file of {}", bytes, file.size()));
  }
  return std::string_view(reinterpret_cast<const char*>(file.data()) + kLengthBytes, bytes);
}

}  // namespace

Result<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  // A pipe opened for reading would block until somebody writes.
  const FileDescriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!descriptor) return fail_errno(errno, path);
  struct stat status = {};
  if (::fstat(descriptor.get(), &status) != 0) return fail_errno(errno, path);
  if (!S_ISREG(status.st_mode)) return fail(Code::invalid_argument, format("{}: not a regular file", path));

  SafetensorsFile file;
  file.mapping_bytes_ = static_cast<std::size_t>(status.st_size);
  if (file.mapping_bytes_ != 0) {
    void* mapping = ::mmap(nullptr, file.mapping_bytes_, PROT_READ, MAP_SHARED, descriptor.get(), 0);
    if (mapping == MAP_FAILED) return fail_errno(errno, path);
    file.mapping_ = mapping;
  }
  if (Status read = file.read_header(); !read) return fail(std::move(read).error().with_context(path));
  return file;
}

Status SafetensorsFile::read_header() {
  const Bytes file(static_cast<const std::byte*>(mapping_), mapping_bytes_);
  FRESHET_ASSIGN(const std::string_view text, header_of(file));
  const Bytes data = file.subspan(kLengthBytes + text.size());
  FRESHET_ASSIGN(SafetensorsHeader header, parse_safetensors_header(text, data.size()));
  metadata_ = std::move(header.metadata);
  tensors_.reserve(header.entries.size());
  for (SafetensorsHeader::Entry& entry : header.entries) {
    tensors_.push_back({.spec = std::move(entry.spec), .data = data.subspan(entry.begin, entry.end - entry.begin)});
  }
  return {};
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : mapping_(std::exchange(other.mapping_, nullptr)),
      mapping_bytes_(std::exchange(other.mapping_bytes_, 0)),
      tensors_(std::move(other.tensors_)),
      metadata_(std::move(other.metadata_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  tensors_.swap(other.tensors_);
  metadata_.swap(other.metadata_);
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

}  // namespace freshet
