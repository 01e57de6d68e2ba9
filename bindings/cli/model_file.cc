#include "bindings/cli/model_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "core/format.h"

namespace freshet::cli {
namespace {

class Descriptor {
 public:
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

Status read_exactly(int descriptor, std::uint64_t offset, MutableBytes out, const std::string& path) {
  while (!out.empty()) {
    const ssize_t bytes = ::pread(descriptor, out.data(), out.size(), static_cast<off_t>(offset));
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return fail_errno(errno, path);
    if (bytes == 0) return fail(Code::unavailable, format("{}: the file became shorter while it was read", path));
    out = out.subspan(static_cast<std::size_t>(bytes));
    offset += static_cast<std::uint64_t>(bytes);
  }
  return {};
}

bool is_same_content(const struct stat& before, const struct stat& after) {
  return before.st_size == after.st_size && before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
         before.st_mtim.tv_nsec == after.st_mtim.tv_nsec;
}

std::uint64_t machine_memory_bytes() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

Result<ModelFile> ModelFile::read(const std::string& path) {
  // Non-blocking, so that a pipe without a writer is an error and no wait.
  const Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (descriptor.get() < 0) return fail_errno(errno, path);
  ModelFile file;
  FRESHET_TRY(file.read_from(descriptor.get(), path));
  return file;
}

Status ModelFile::read_from(int descriptor, const std::string& path) {
  struct stat before {};
  if (::fstat(descriptor, &before) != 0) return fail_errno(errno, path);
  if (!S_ISREG(before.st_mode)) return fail(Code::invalid_argument, path + ": not a regular file");
  const auto file_bytes = static_cast<std::uint64_t>(before.st_size);

  std::uint64_t header_bytes = 0;
  if (file_bytes < sizeof(header_bytes)) {
    return fail(Code::corrupt, format("{}: {} bytes are no safetensors file", path, file_bytes));
  }
  FRESHET_TRY(read_exactly(descriptor, 0, std::as_writable_bytes(std::span(&header_bytes, 1)), path));
  const std::uint64_t after_length = file_bytes - sizeof(header_bytes);
  if (header_bytes > kSafetensorsHeaderBytesMax || header_bytes > after_length) {
    return fail(Code::corrupt, format("{}: a header of {} bytes in a file of {}", path, header_bytes, file_bytes));
  }
  std::string json(header_bytes, '\0');
  FRESHET_TRY(read_exactly(descriptor, sizeof(header_bytes), std::as_writable_bytes(std::span(json)), path));
  FRESHET_TRY(take_header(json, after_length - header_bytes, path));

  const MutableBytes data(static_cast<std::byte*>(memory_), memory_bytes_);
  FRESHET_TRY(read_exactly(descriptor, sizeof(header_bytes) + header_bytes, data, path));
  struct stat after {};
  if (::fstat(descriptor, &after) != 0) return fail_errno(errno, path);
  if (!is_same_content(before, after)) {
    return fail(Code::unavailable, format("{}: the file changed while it was read", path));
  }
  return {};
}

Status ModelFile::take_header(std::string_view json, std::uint64_t data_bytes, const std::string& path) {
  Result<SafetensorsHeader> header = parse_safetensors_header(json, data_bytes);
  if (!header) return fail(std::move(header).error().with_context(path));
  if (data_bytes > machine_memory_bytes()) {
    return fail(Code::out_of_space, format("{}: {} bytes are more than this machine's memory", path, data_bytes));
  }
  if (data_bytes > 0) {
    void* memory = ::mmap(nullptr, data_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fail_errno(errno, format("{}: {} bytes of memory", path, data_bytes));
    memory_ = memory;
    memory_bytes_ = data_bytes;
  }
  const Bytes data(static_cast<const std::byte*>(memory_), memory_bytes_);
  for (SafetensorsHeader::Entry& entry : header->entries) {
    tensors_.push_back({.spec = std::move(entry.spec), .data = data.subspan(entry.begin, entry.end - entry.begin)});
  }
  metadata_ = std::move(header->metadata);
  return {};
}

ModelFile::ModelFile(ModelFile&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)),
      memory_bytes_(std::exchange(other.memory_bytes_, 0)),
      tensors_(std::move(other.tensors_)),
      metadata_(std::move(other.metadata_)) {}

ModelFile::~ModelFile() {
  if (memory_ != nullptr) ::munmap(memory_, memory_bytes_);
}

std::vector<TensorView> in_order_of(const Architecture& architecture, const std::vector<TensorView>& tensors) {
  const auto specs = architecture.tensors();
  if (specs.size() != tensors.size()) return {};
  std::vector<TensorView> ordered(specs.size());
  for (const TensorView& view : tensors) {
    const auto index = architecture.tensor_named(view.spec.name);
    if (!index || specs[*index] != view.spec) return {};
    ordered[*index] = view;
  }
  return ordered;
}

}  // namespace freshet::cli
