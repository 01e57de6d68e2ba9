#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <unordered_set>

#include "core/canonical_json.h"
#include "core/file_descriptor.h"
#include "core/format.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace freshet {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::size_t kWriteBytesMax = std::size_t{1} << 30;  ///< Of one call; Linux writes at most 2 GiB - 4 KiB.
constexpr int kTemporaryNamesMax = 1000;

tl::unexpected<Error> refuse(std::string reason) { return fail(Code::invalid_argument, std::move(reason)); }

Status check_tensors(std::span<const TensorView> tensors) {
  std::unordered_set<std::string_view> names;
  for (const TensorView& tensor : tensors) {
    FRESHET_TRY(tensor.spec.check());
    FRESHET_TRY(check_label("tensor name", tensor.spec.name, kTensorNameBytesMax));
    const std::string name = shown(tensor.spec.name);
    if (tensor.spec.name == kMetadataKey) return refuse(format("a tensor cannot be named {}", kMetadataKey));
    if (!names.insert(tensor.spec.name).second) return refuse(format("two tensors are named {}", name));
    if (tensor.data.size() != tensor.spec.bytes()) {
      return refuse(format("tensor {}: {} bytes for {}", name, tensor.data.size(),
                           describe(tensor.spec.dtype, tensor.spec.shape)));
    }
  }
  return {};
}

Status append_metadata(std::string& json, const SafetensorsMetadata& metadata) {
  std::unordered_set<std::string_view> keys;
  append_json_string(json, kMetadataKey);
  json += ":{";
  for (const auto& [key, value] : metadata) {
    if (!is_utf8(key) || !is_utf8(value)) return refuse(format("metadata {} is not UTF-8", shown(key)));
    if (!keys.insert(key).second) return refuse(format("metadata {} stands twice", shown(key)));
    if (json.back() != '{') json += ',';
    append_json_string(json, key);
    json += ':';
    append_json_string(json, value);
  }
  json += '}';
  return {};
}

void append_tensor(std::string& json, const TensorSpec& spec, std::uint64_t begin) {
  append_json_string(json, spec.name);
  json += format(":{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", safetensors_name_of(spec.dtype),
                 fmt::join(spec.shape, ","), begin, begin + spec.bytes());
}

/// The length and the JSON, padded with spaces so that the data starts on a multiple of eight bytes.
Result<std::string> header_for(std::span<const TensorView> tensors, const SafetensorsMetadata& metadata) {
  FRESHET_TRY(check_tensors(tensors));
  std::string json = "{";
  if (!metadata.empty()) FRESHET_TRY(append_metadata(json, metadata));
  std::uint64_t offset = 0;
  for (const TensorView& tensor : tensors) {
    if (json.size() > 1) json += ',';
    append_tensor(json, tensor.spec, offset);
    offset += tensor.data.size();
  }
  json += '}';
  while (json.size() % 8 != 0) json += ' ';
  if (json.size() > kSafetensorsHeaderBytesMax) {
    return refuse(format("a header of {} bytes is over the limit of {}", json.size(), kSafetensorsHeaderBytesMax));
  }
  std::string header;
  for (int i = 0; i < 8; ++i) header += static_cast<char>((json.size() >> (8 * i)) & 0xff);
  return header + json;
}

/// A file beside its final place. Destroyed before commit() it leaves nothing behind.
class PendingFile {
 public:
  explicit PendingFile(std::string path) : path_(std::move(path)) {}
  PendingFile(const PendingFile&) = delete;
  PendingFile& operator=(const PendingFile&) = delete;
  ~PendingFile() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  Status create() {
    static std::atomic<std::uint64_t> counter = 0;
    for (int attempt = 0; attempt < kTemporaryNamesMax; ++attempt) {
      std::string name = format("{}.tmp-{}-{}", path_, ::getpid(), counter++);
      descriptor_ = FileDescriptor(::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
      if (descriptor_) {
        temporary_ = std::move(name);
        return {};
      }
      if (errno != EEXIST) return fail_errno(errno, path_);
    }
    return fail(Code::already_exists, format("{}: every name for a temporary beside it is taken", path_));
  }

  Status write(Bytes bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_.get(), bytes.data(), std::min(bytes.size(), kWriteBytesMax));
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return fail_errno(written == 0 ? EIO : errno, path_);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
    return {};
  }

  Status commit(bool sync) {
    if (sync && ::fsync(descriptor_.get()) != 0) return fail_errno(errno, path_);
    if (::close(descriptor_.release()) != 0) return fail_errno(errno, path_);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return fail_errno(errno, path_);
    temporary_.clear();
    return sync ? sync_folder() : Status();
  }

 private:
  /// The rename itself is durable once the folder is.
  Status sync_folder() const {
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const FileDescriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!descriptor || ::fsync(descriptor.get()) != 0) return fail_errno(errno, folder);
    return {};
  }

  std::string path_;
  std::string temporary_;
  FileDescriptor descriptor_;
};

}  // namespace

Status write_safetensors(const std::string& path, std::span<const TensorView> tensors,
                         const SafetensorsMetadata& metadata, bool sync) {
  Result<std::string> header = header_for(tensors, metadata);
  if (!header) return fail(std::move(header).error().with_context(path));
  PendingFile file(path);
  FRESHET_TRY(file.create());
  FRESHET_TRY(file.write(std::as_bytes(std::span(*header))));
  for (const TensorView& tensor : tensors) FRESHET_TRY(file.write(tensor.data));
  return file.commit(sync);
}

}  // namespace freshet
