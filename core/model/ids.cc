// SPDX-License-Identifier: Apache-2.0
#include "core/model/ids.h"


#include "core/base/format.h"
#include "core/words/number.h"

namespace freshet {
namespace {

constexpr std::size_t kModelNameBytesMax = 128;

bool is_name_character(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

}  // namespace

std::string to_string(const VersionName& name) {
  return name.number == 0 ? name.model : format("{}@{}", name.model, name.number);
}

std::string to_string(const VersionId& id) {
  return format("{:016x}{:016x}/{}/{}", id.run.high, id.run.low, id.incarnation, id.sequence);
}

std::string to_string(const SegmentName& name) { return format("{}/{}", to_string(name.writer), name.tensor); }

Status check_model_name(std::string_view name) {
  if (name.empty() || name.size() > kModelNameBytesMax) {
    return fail(Code::invalid_argument,
                format("a model name has 1 to {} characters, this one has {}", kModelNameBytesMax, name.size()));
  }
  for (const char c : name) {
    if (!is_name_character(c)) {
      return fail(Code::invalid_argument, "a model name holds letters, digits, '.', '_' and '-' only");
    }
  }
  if (name.front() == '.' || name.front() == '-') {
    return fail(Code::invalid_argument, format("model name {} starts with '{}'", name, name.front()));
  }
  return {};
}

Result<VersionName> parse_version_name(std::string_view text) {
  const std::size_t at = text.find('@');
  VersionName name{.model = std::string(text.substr(0, at))};
  FRESHET_TRY(check_model_name(name.model));
  if (at == std::string_view::npos) return name;
  name.number = number_in<VersionNumber>(text.substr(at + 1)).value_or(0);
  if (name.number == 0) {
    return fail(Code::invalid_argument, format("{}: a version is a number from 1, written MODEL@V", text));
  }
  return name;
}

}  // namespace freshet
