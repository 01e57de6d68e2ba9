// SPDX-License-Identifier: Apache-2.0
#include "repo/s3/credentials.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <system_error>

#include "core/base/file_descriptor.h"
#include "core/base/format.h"
#include "core/base/text.h"

namespace freshet::s3 {
namespace {

constexpr Duration kLookAtFileAgain = std::chrono::seconds(1);
constexpr std::size_t kCredentialFileBytesMax = 1 << 20;
constexpr std::size_t kCredentialBytesMax = 16 << 10;

struct OtherKind {
  const char* name;
  const char* kind;
};
/// Variables of other kinds of credentials.
constexpr std::array<OtherKind, 4> kOtherVariables = {{
    {"AWS_WEB_IDENTITY_TOKEN_FILE", "web identity"},
    {"AWS_ROLE_ARN", "an assumed role"},
    {"AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "a container's service of credentials"},
    {"AWS_CONTAINER_CREDENTIALS_FULL_URI", "a container's service of credentials"},
}};
/// Settings of a profile of another kind.
constexpr std::array<OtherKind, 6> kOtherSettings = {{
    {"web_identity_token_file", "web identity"},
    {"role_arn", "an assumed role"},
    {"credential_process", "a process that prints credentials"},
    {"sso_session", "single sign-on"},
    {"sso_start_url", "single sign-on"},
    {"credential_source", "a service of credentials"},
}};
constexpr std::string_view kKnownKinds =
    "Freshet knows AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY, and ~/.aws/credentials with AWS_PROFILE";

std::string_view without_spaces(std::string_view text) {
  constexpr std::string_view kSpaces = " \t\r";
  const auto first = text.find_first_not_of(kSpaces);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpaces) - first + 1);
}

/// They travel in headers: visible ASCII, without spaces.
Status check_credentials(const Credentials& credentials, std::string_view origin) {
  const auto is_good = [](std::string_view text) {
    return text.size() <= kCredentialBytesMax &&
           text.find_first_not_of(
               "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789!\"#$%&'()*+,-./:;<=>?"
               "@[\\]^_`{|}~") == std::string_view::npos;
  };
  if (credentials.access_key_id.empty()) return fail(Code::failed_precondition, format("{}: no access key ID", origin));
  if (credentials.secret_access_key.empty()) {
    return fail(Code::failed_precondition, format("{}: an access key ID without a secret access key", origin));
  }
  if (!is_good(credentials.access_key_id) || !is_good(credentials.secret_access_key) ||
      !is_good(credentials.session_token)) {
    return fail(Code::failed_precondition, format("{}: a credential has a space or a control character", origin));
  }
  return {};
}

}  // namespace

Result<Credentials> credentials_in(std::string_view text, std::string_view profile, std::string_view path) {
  std::map<std::string, std::string, std::less<>> settings;
  bool is_in_profile = false;
  bool is_found = false;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string_view line = without_spaces(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#' || line.front() == ';') continue;
    if (line.front() == '[') {
      is_in_profile = line.back() == ']' && without_spaces(line.substr(1, line.size() - 2)) == profile;
      is_found = is_found || is_in_profile;
      continue;
    }
    const auto equals = line.find('=');
    if (!is_in_profile || equals == std::string_view::npos) continue;
    settings[std::string(without_spaces(line.substr(0, equals)))] = without_spaces(line.substr(equals + 1));
  }
  const std::string origin = format("{} [{}]", path, shown(profile));
  if (!is_found) {
    return fail(Code::failed_precondition, format("{}: the file has no such part; set AWS_PROFILE to one of its parts, "
                                                  "or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
                                                  origin));
  }
  const Credentials credentials{.access_key_id = settings["aws_access_key_id"],
                                .secret_access_key = settings["aws_secret_access_key"],
                                .session_token = settings["aws_session_token"]};
  if (credentials.access_key_id.empty()) {
    for (const auto& [name, kind] : kOtherSettings) {
      if (!settings.contains(name)) continue;
      return fail(Code::unsupported, format("{}: {} names {}; {}", origin, name, kind, kKnownKinds));
    }
  }
  FRESHET_TRY(check_credentials(credentials, origin));
  return credentials;
}

bool CredentialSource::from_variables() const {
  return !env_.variable("AWS_ACCESS_KEY_ID").value_or("").empty() ||
         !env_.variable("AWS_SECRET_ACCESS_KEY").value_or("").empty();
}

std::string CredentialSource::profile() const {
  const std::string named = env_.variable("AWS_PROFILE").value_or("");
  return named.empty() ? "default" : named;
}

std::string CredentialSource::path() const {
  const std::string named = env_.variable("AWS_SHARED_CREDENTIALS_FILE").value_or("");
  return named.empty() ? env_.variable("HOME").value_or("") + "/.aws/credentials" : named;
}

std::string CredentialSource::origin() const {
  return from_variables() ? "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" : format("{} [{}]", path(), shown(profile()));
}

Result<Credentials> CredentialSource::load_file() const {
  const std::string from = path();
  const auto unreadable = [&](std::string_view why) {
    return fail(Code::failed_precondition,
                format("{}: the file of credentials cannot be read: {}; correct it, or set AWS_ACCESS_KEY_ID and "
                       "AWS_SECRET_ACCESS_KEY",
                       from, why));
  };
  // Does not wait for the writer of a pipe.
  const FileDescriptor file(::open(from.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file && errno == ENOENT) {
    return fail(Code::failed_precondition,
                format("there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write {}", from));
  }
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0) return unreadable(std::generic_category().message(errno));
  if (!S_ISREG(about.st_mode)) return unreadable("it is not a regular file");
  std::string text(kCredentialFileBytesMax + 1, '\0');
  std::size_t filled = 0;
  while (filled < text.size()) {
    const ssize_t count = ::read(file.get(), text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return unreadable(std::generic_category().message(errno));
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
  }
  if (filled > kCredentialFileBytesMax) return unreadable("it is larger than 1 MiB");
  text.resize(filled);
  return credentials_in(text, profile(), from);
}

Result<Credentials> CredentialSource::load() const {
  if (!from_variables()) {
    // An explicit profile goes before what a cluster puts into the environment.
    if (env_.variable("AWS_PROFILE").value_or("").empty()) {
      for (const auto& [name, kind] : kOtherVariables) {
        if (env_.variable(name).value_or("").empty()) continue;
        return fail(Code::unsupported, format("{} names {}; {}", name, kind, kKnownKinds));
      }
    }
    return load_file();
  }
  const Credentials credentials{.access_key_id = env_.variable("AWS_ACCESS_KEY_ID").value_or(""),
                                .secret_access_key = env_.variable("AWS_SECRET_ACCESS_KEY").value_or(""),
                                .session_token = env_.variable("AWS_SESSION_TOKEN").value_or("")};
  FRESHET_TRY(check_credentials(credentials, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"));
  return credentials;
}

CredentialSource::Look CredentialSource::look() const {
  struct stat file {};
  if (from_variables() || ::stat(path().c_str(), &file) != 0) return {};
  return {.changed_ns = file.st_mtim.tv_sec * std::int64_t{1'000'000'000} + file.st_mtim.tv_nsec,
          .inode = file.st_ino,
          .bytes = file.st_size};
}

Result<Credentials> CredentialSource::credentials() {
  std::optional<Credentials> last;
  Look last_look;
  {
    const MutexLock lock(mutex_);
    const Time now = system_clock().now();
    if (last_ && now < next_look_) return *last_;
    next_look_ = now + kLookAtFileAgain;
    last = last_;
    last_look = last_look_;
  }
  const Look now_there = look();
  if (last && now_there == last_look) return *last;
  Result<Credentials> loaded = load();
  // A file that is being written counts when it is whole.
  if (!loaded && last) return *last;
  if (loaded) keep(*loaded, now_there);
  return loaded;
}

bool CredentialSource::renew(const Credentials& refused) {
  const Look now_there = look();
  const Result<Credentials> loaded = load();
  if (!loaded) return false;
  keep(*loaded, now_there);
  return *loaded != refused;
}

void CredentialSource::keep(const Credentials& credentials, const Look& seen) {
  const MutexLock lock(mutex_);
  last_ = credentials;
  last_look_ = seen;
}

}  // namespace freshet::s3
