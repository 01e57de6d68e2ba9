#include "transport/directory/host_directory.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/format.h"

namespace freshet {
namespace {

using nlohmann::json;

constexpr std::size_t kEntryBytesMax = 16 * 1024;
constexpr std::size_t kEntriesMax = 4096;
constexpr std::size_t kAddressBytesMax = 4096;
/// No honest publisher comes near; a number beyond leaves no room to count on.
constexpr std::uint64_t kNumberMax = std::uint64_t{1} << 62;
constexpr std::string_view kEntrySuffix = ".entry";

struct Record {
  std::uint64_t number = 0;
  std::uint64_t incarnation = 0;
};
constexpr std::size_t kRecordBytes = 16;

void put_le64(std::byte* to, std::uint64_t value) {
  for (int i = 0; i < 8; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint64_t get_le64(const std::byte* from) {
  std::uint64_t value = 0;
  for (int i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(from[i]) << (8 * i);
  return value;
}

std::string default_folder() {
  if (const char* run = std::getenv("FRESHET_RUN_DIR"); run != nullptr && *run != '\0') return run;
  if (const char* xdg = std::getenv("XDG_RUNTIME_DIR"); xdg != nullptr && *xdg == '/') {
    return std::string(xdg) + "/freshet";
  }
  return format("/tmp/freshet-{}", ::geteuid());
}

/// A file of the folder: regular, ours, closed to others. Links are not followed.
Result<FileDescriptor> open_file(int folder, const std::string& name, int flags) {
  FileDescriptor file(::openat(folder, name.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file) return fail_errno(errno, "open " + name);
  struct stat facts {};
  if (::fstat(file.get(), &facts) != 0) return fail_errno(errno, "stat " + name);
  if (!S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid() || (facts.st_mode & 022) != 0) {
    return fail(Code::failed_precondition, name + " is not a regular file that belongs to this user alone");
  }
  return file;
}

/// The whole file, or corrupt when it is longer than `bytes_max`.
Result<std::string> read_file(int file, std::size_t bytes_max, const std::string& name) {
  std::string text(bytes_max + 1, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::pread(file, text.data() + have, text.size() - have, static_cast<off_t>(have));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_errno(errno, "read " + name);
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  if (have > bytes_max) return fail(Code::corrupt, format("{} is longer than {} bytes", name, bytes_max));
  text.resize(have);
  return text;
}

Status write_whole(int file, const void* data, std::size_t bytes, const std::string& name) {
  const ssize_t wrote = ::pwrite(file, data, bytes, 0);
  if (wrote < 0) return fail_errno(errno, "write " + name);
  if (static_cast<std::size_t>(wrote) != bytes) return fail(Code::out_of_space, "write " + name + ": cut short");
  return {};
}

struct flock whole_file(short type) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

std::string holder_of(int lock_file, const std::string& name) {
  auto text = read_file(lock_file, 32, name);
  if (!text || text->empty() || text->find_first_not_of("0123456789\n") != std::string::npos) return "another process";
  while (!text->empty() && text->back() == '\n') text->pop_back();
  return "process " + *text;
}

Result<HostDirectory::Entry> parse_entry(const std::string& text, const std::string& model) {
  const auto bad = [&](std::string_view what) {
    return fail(Code::corrupt, format("directory entry of {}: {}", model, what));
  };
  const json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("not a JSON object");
  const auto member = [&](const char* key) -> const json* {
    const auto at = object.find(key);
    return at == object.end() ? nullptr : &*at;
  };
  const json* named = member("model");
  const json* pid = member("pid");
  const json* incarnation = member("incarnation");
  const json* control = member("control");
  if (named == nullptr || !named->is_string() || named->get<std::string>() != model) return bad("names another model");
  if (pid == nullptr || !pid->is_number_unsigned() ||
      pid->get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
    return bad("pid is not a process id");
  }
  if (incarnation == nullptr || !incarnation->is_number_unsigned()) return bad("incarnation is not a number");
  if (control == nullptr || !control->is_string() || control->get_ref<const std::string&>().empty() ||
      control->get_ref<const std::string&>().size() > kAddressBytesMax) {
    return bad("control is not an address");
  }
  return HostDirectory::Entry{.model = model,
                              .pid = static_cast<std::int32_t>(pid->get<std::uint64_t>()),
                              .incarnation = incarnation->get<std::uint64_t>(),
                              .control = control->get<std::string>()};
}

class HeldClaim final : public HostDirectory::Claim {
 public:
  HeldClaim(std::shared_ptr<const FileDescriptor> folder, std::string model, FileDescriptor lock,
            FileDescriptor numbers, Record record)
      : folder_(std::move(folder)),
        model_(std::move(model)),
        lock_(std::move(lock)),
        numbers_(std::move(numbers)),
        record_(record) {}

  ~HeldClaim() override {
    // The entry goes first: whoever sees the lock free finds no entry to follow.
    if (advertised_) ::unlinkat(folder_->get(), (model_ + std::string(kEntrySuffix)).c_str(), 0);
  }

  VersionNumber last_number() const override { return record_.number; }

  Result<std::uint64_t> begin_incarnation(std::int64_t unix_ns) override {
    const std::uint64_t next = std::max<std::uint64_t>(record_.incarnation + 1, unix_ns > 0 ? unix_ns : 0);
    FRESHET_TRY(write_record({.number = record_.number, .incarnation = next}));
    return next;
  }

  Status record_number(VersionNumber number) override {
    return write_record({.number = number, .incarnation = record_.incarnation});
  }

  Status advertise(const HostDirectory::Entry& entry) override {
    const std::string text =
        json{{"model", entry.model}, {"pid", entry.pid}, {"incarnation", entry.incarnation}, {"control", entry.control}}
            .dump(-1, ' ', false, json::error_handler_t::replace);
    const std::string name = model_ + std::string(kEntrySuffix);
    const std::string aside = name + ".new";
    ::unlinkat(folder_->get(), aside.c_str(), 0);
    FRESHET_ASSIGN(const FileDescriptor file, open_file(folder_->get(), aside, O_WRONLY | O_CREAT | O_EXCL));
    FRESHET_TRY(write_whole(file.get(), text.data(), text.size(), aside));
    if (::renameat(folder_->get(), aside.c_str(), folder_->get(), name.c_str()) != 0) {
      return fail_errno(errno, "rename " + aside);
    }
    advertised_ = true;
    return {};
  }

 private:
  Status write_record(Record record) {
    std::array<std::byte, kRecordBytes> bytes;
    put_le64(bytes.data(), record.number);
    put_le64(bytes.data() + 8, record.incarnation);
    FRESHET_TRY(write_whole(numbers_.get(), bytes.data(), bytes.size(), model_ + ".number"));
    record_ = record;
    return {};
  }

  std::shared_ptr<const FileDescriptor> folder_;
  std::string model_;
  FileDescriptor lock_;
  FileDescriptor numbers_;
  Record record_;
  bool advertised_ = false;
};

Result<Record> read_record(int file, const std::string& name) {
  FRESHET_ASSIGN(const std::string text, read_file(file, kRecordBytes, name));
  if (text.empty()) return Record{};
  const auto* bytes = reinterpret_cast<const std::byte*>(text.data());
  const bool whole = text.size() == kRecordBytes;
  const Record record = whole ? Record{.number = get_le64(bytes), .incarnation = get_le64(bytes + 8)} : Record{};
  if (!whole || record.number > kNumberMax || record.incarnation >= std::numeric_limits<std::uint64_t>::max() / 2) {
    return fail(Code::corrupt, name + " does not hold a version number; remove it to count from 1 again");
  }
  return record;
}

}  // namespace

Result<HostDirectory> HostDirectory::open(const std::string& folder) {
  std::error_code failure;
  const std::string path = std::filesystem::absolute(folder.empty() ? default_folder() : folder, failure).string();
  if (failure) return fail(Code::io_error, format("host directory {}: {}", folder, failure.message()));
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return fail_errno(errno, "create host directory " + path);
  // The last component may not be a link: in a folder that others can write, it could lead anywhere.
  auto descriptor =
      std::make_shared<FileDescriptor>(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!*descriptor) return fail_errno(errno, "open host directory " + path);
  struct stat facts {};
  if (::fstat(descriptor->get(), &facts) != 0) return fail_errno(errno, "stat host directory " + path);
  if (facts.st_uid != ::geteuid()) {
    return fail(Code::failed_precondition, format("host directory {} belongs to another user", path));
  }
  if ((facts.st_mode & 077) != 0) {
    return fail(Code::failed_precondition,
                format("host directory {} is open to other users (chmod 700 closes it)", path));
  }
  return HostDirectory(path, std::move(descriptor));
}

Result<std::unique_ptr<HostDirectory::Claim>> HostDirectory::claim(const std::string& model) const {
  FRESHET_TRY(check_model_name(model));
  const int folder = descriptor_->get();
  FRESHET_ASSIGN(FileDescriptor lock, open_file(folder, model + ".lock", O_RDWR | O_CREAT));
  struct flock wanted = whole_file(F_WRLCK);
  if (::fcntl(lock.get(), F_OFD_SETLK, &wanted) != 0) {
    if (errno != EAGAIN && errno != EACCES) return fail_errno(errno, "lock " + model + ".lock");
    return fail(Code::already_exists,
                format("{} is already published on this host, by {}", model, holder_of(lock.get(), model + ".lock")));
  }
  const std::string pid = format("{}\n", ::getpid());
  if (::ftruncate(lock.get(), 0) != 0) return fail_errno(errno, "truncate " + model + ".lock");
  FRESHET_TRY(write_whole(lock.get(), pid.data(), pid.size(), model + ".lock"));
  FRESHET_ASSIGN(FileDescriptor numbers, open_file(folder, model + ".number", O_RDWR | O_CREAT));
  FRESHET_ASSIGN(const Record record, read_record(numbers.get(), model + ".number"));
  return std::unique_ptr<Claim>(new HeldClaim(descriptor_, model, std::move(lock), std::move(numbers), record));
}

Result<HostDirectory::Entry> HostDirectory::lookup(const std::string& model) const {
  FRESHET_TRY(check_model_name(model));
  const int folder = descriptor_->get();
  const auto gone = [&] { return fail(Code::not_found, format("nobody publishes {} in {}", model, folder_)); };
  auto lock = open_file(folder, model + ".lock", O_RDONLY);
  if (!lock) return lock.error().code() == Code::not_found ? gone() : fail(std::move(lock).error());
  struct flock held = whole_file(F_RDLCK);
  if (::fcntl(lock->get(), F_OFD_GETLK, &held) != 0) return fail_errno(errno, "ask about " + model + ".lock");
  if (held.l_type == F_UNLCK) return gone();
  auto file = open_file(folder, model + std::string(kEntrySuffix), O_RDONLY);
  if (!file) return file.error().code() == Code::not_found ? gone() : fail(std::move(file).error());
  FRESHET_ASSIGN(const std::string text, read_file(file->get(), kEntryBytesMax, model + std::string(kEntrySuffix)));
  return parse_entry(text, model);
}

std::vector<HostDirectory::Entry> HostDirectory::list() const {
  std::vector<Entry> entries;
  // A fresh description: reading through a shared one would move everybody's position.
  const int folder = ::openat(descriptor_->get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return entries;
  DIR* stream = ::fdopendir(folder);
  if (stream == nullptr) {
    ::close(folder);
    return entries;
  }
  while (const dirent* item = ::readdir(stream)) {
    const std::string_view name = item->d_name;
    if (!name.ends_with(kEntrySuffix) || entries.size() >= kEntriesMax) continue;
    if (auto entry = lookup(std::string(name.substr(0, name.size() - kEntrySuffix.size())))) {
      entries.push_back(std::move(*entry));
    }
  }
  ::closedir(stream);
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.model < b.model; });
  return entries;
}

}  // namespace freshet
