// SPDX-License-Identifier: Apache-2.0
#include "repo/files/version_sheet.h"

#include <cmath>
#include <limits>

#include "core/base/format.h"
#include "core/json/json_document.h"
#include "core/model/format_version.h"
#include "core/words/number.h"
#include "repo/repository.h"

namespace freshet {
namespace {

// JSON has no number for these.
JsonDocument number_json(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

// "run-hex/incarnation/sequence", and what stands behind the next slash.
std::optional<VersionId> parse_id(std::string_view text, std::string_view* rest = nullptr) {
  VersionId id;
  const std::size_t first = text.find('/');
  const std::size_t second = first == std::string_view::npos ? first : text.find('/', first + 1);
  if (second == std::string_view::npos) return std::nullopt;
  const std::size_t third = rest == nullptr ? text.size() : std::min(text.find('/', second + 1), text.size());
  const auto incarnation = number_in<std::uint64_t>(text.substr(first + 1, second - first - 1));
  const auto sequence = number_in<std::uint64_t>(text.substr(second + 1, third - second - 1));
  if (!read_hex(text.substr(0, first), id.run.high, id.run.low) || !incarnation || !sequence) return std::nullopt;
  id.incarnation = *incarnation;
  id.sequence = *sequence;
  if (rest != nullptr) *rest = text.substr(std::min(third + 1, text.size()));
  return id;
}

tl::unexpected<Error> wrong(const std::string& what) { return fail(Code::invalid_argument, what); }

/// Reads the members of one sheet, and remembers the first that is not what it should be.
class SheetReader {
 public:
  explicit SheetReader(const JsonDocument& object) : object_(object) {}

  Result<VersionSheet> read() {
    FRESHET_TRY(check_form());
    VersionSheet sheet;
    Manifest& manifest = sheet.manifest;
    FRESHET_ASSIGN(manifest.name, name(object_, "version"));
    FRESHET_ASSIGN(manifest.id, id(object_));
    FRESHET_TRY(read_ancestor(manifest));
    FRESHET_ASSIGN(manifest.created_unix_ns, integer("created_ns"));
    FRESHET_ASSIGN(sheet.exported_unix_ns, integer("exported_ns"));
    FRESHET_ASSIGN(manifest.step, step());
    FRESHET_TRY(read_metrics(manifest.metrics));
    FRESHET_TRY(read_tags(manifest.tags));
    FRESHET_TRY(check_annotations(manifest.metrics, manifest.tags));
    FRESHET_TRY(read_quality(sheet.quality));
    FRESHET_ASSIGN(const std::string architecture, text(object_, "architecture"));
    if (!read_hex(architecture, sheet.architecture.high, sheet.architecture.low)) {
      return wrong("\"architecture\" is no digest");
    }
    FRESHET_ASSIGN(sheet.has_weights, truth("has_weights"));
    FRESHET_ASSIGN(sheet.has_graph, truth("has_graph"));
    FRESHET_TRY(read_aliases(sheet.aliases));
    FRESHET_TRY(read_tensors(sheet));
    return sheet;
  }

 private:
  static const JsonDocument* member(const JsonDocument& object, const char* key) {
    const auto found = object.find(key);
    return found == object.end() ? nullptr : &*found;
  }

  static Result<std::string> text(const JsonDocument& object, const char* key) {
    const JsonDocument* const value = member(object, key);
    if (value == nullptr || !value->is_string()) return wrong(format("\"{}\" is no text", key));
    return value->get<std::string>();
  }

  Status check_form() const {
    if (!object_.is_object()) return wrong("it is no JSON object");
    const JsonDocument* const form = member(object_, "freshet_version");
    if (form == nullptr || !form->is_number_integer()) return wrong("it has no \"freshet_version\"");
    if (form->get<std::int64_t>() != kFormatVersion) {
      return fail(
          Code::unsupported,
          format("it was written by another Freshet (format {}); this Freshet reads format {}. Import the files "
                 "without their sheets (--plain)",
                 form->dump(), kFormatVersion));
    }
    return {};
  }

  static Result<VersionName> name(const JsonDocument& object, const char* key) {
    FRESHET_ASSIGN(const std::string name_text, text(object, key));
    FRESHET_ASSIGN(VersionName parsed, parse_version_name(name_text));
    if (parsed.number == 0 || parsed.number > kVersionNumberMax) return wrong(format("\"{}\" has no number", key));
    return parsed;
  }

  static Result<VersionId> id(const JsonDocument& object) {
    FRESHET_ASSIGN(const std::string id_text, text(object, "id"));
    const auto parsed = parse_id(id_text);
    if (!parsed) return wrong("\"id\" is no version's identity");
    return *parsed;
  }

  Status read_ancestor(Manifest& manifest) const {
    const JsonDocument* const ancestor = member(object_, "ancestor");
    if (ancestor == nullptr || ancestor->is_null()) return {};
    if (!ancestor->is_object()) return wrong("\"ancestor\" is no object");
    FRESHET_ASSIGN(manifest.ancestor, id(*ancestor));
    const JsonDocument* const known_as = member(*ancestor, "version");
    if (known_as == nullptr || known_as->is_null()) return {};
    FRESHET_ASSIGN(manifest.ancestor_name, name(*ancestor, "version"));
    return {};
  }

  Result<std::int64_t> integer(const char* key) const {
    const JsonDocument* const value = member(object_, key);
    const bool fits = value != nullptr && value->is_number_integer() &&
                      (!value->is_number_unsigned() ||
                       value->get<std::uint64_t>() <= std::uint64_t{std::numeric_limits<std::int64_t>::max()});
    if (!fits) return wrong(format("\"{}\" is no time in nanoseconds", key));
    return value->get<std::int64_t>();
  }

  Result<bool> truth(const char* key) const {
    const JsonDocument* const value = member(object_, key);
    if (value == nullptr || !value->is_boolean()) return wrong(format("\"{}\" is neither true nor false", key));
    return value->get<bool>();
  }

  Result<std::uint64_t> step() const {
    const JsonDocument* const value = member(object_, "step");
    if (value == nullptr) return 0;
    if (!value->is_number_unsigned()) return wrong("\"step\" is no count");
    return value->get<std::uint64_t>();
  }

  static std::optional<double> number(const JsonDocument& value) {
    if (value.is_number()) return value.get<double>();
    const std::string word = value.is_string() ? value.get<std::string>() : std::string();
    if (word == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (word == "inf") return std::numeric_limits<double>::infinity();
    if (word == "-inf") return -std::numeric_limits<double>::infinity();
    return std::nullopt;
  }

  /// [KEY, VALUE] each, in an order that counts.
  template <typename Take>
  Status read_pairs(const char* key, const Take& take) const {
    const JsonDocument* const pairs = member(object_, key);
    if (pairs == nullptr || !pairs->is_array()) return wrong(format("\"{}\" is no list", key));
    for (const JsonDocument& pair : *pairs) {
      const bool taken = pair.is_array() && pair.size() == 2 && pair[0].is_string() && take(pair[0], pair[1]);
      if (!taken) return wrong(format("\"{}\" holds something else than [name, value]", key));
    }
    return {};
  }

  Status read_metrics(Metrics& metrics) const {
    return read_pairs("metrics", [&](const JsonDocument& key, const JsonDocument& value) {
      const std::optional<double> parsed = number(value);
      if (parsed) metrics.emplace_back(key.get<std::string>(), *parsed);
      return parsed.has_value();
    });
  }

  Status read_tags(Tags& tags) const {
    return read_pairs("tags", [&](const JsonDocument& key, const JsonDocument& value) {
      if (value.is_string()) tags.emplace_back(key.get<std::string>(), value.get<std::string>());
      return value.is_string();
    });
  }

  Status read_quality(std::optional<double>& quality) const {
    const JsonDocument* const value = member(object_, "quality");
    if (value == nullptr || value->is_null()) return {};
    quality = number(*value);
    if (!quality) return wrong("\"quality\" is no number");
    if (std::isnan(*quality)) quality.reset();  // As earlier builds exported it.
    return {};
  }

  Status read_aliases(std::vector<std::string>& aliases) const {
    const JsonDocument* const list = member(object_, "aliases");
    if (list == nullptr) return {};
    if (!list->is_array()) return wrong("\"aliases\" is no list");
    for (const JsonDocument& alias : *list) {
      if (!alias.is_string()) return wrong("\"aliases\" holds something else than names");
      FRESHET_TRY(check_alias(alias.get_ref<const std::string&>()));
      aliases.push_back(alias.get<std::string>());
    }
    return {};
  }

  Status read_tensors(VersionSheet& sheet) const {
    const JsonDocument* const list = member(object_, "tensors");
    if (list == nullptr || !list->is_array()) return wrong("\"tensors\" is no list");
    if (list->size() > kTensorsMax) return wrong(format("it has more than {} tensors", kTensorsMax));
    if (!sheet.has_weights && !list->empty()) return wrong("it has tensors, and no weights");
    std::vector<SegmentName> owners;
    for (const JsonDocument& row : *list) {
      if (!row.is_object()) return wrong("\"tensors\" holds something else than objects");
      FRESHET_ASSIGN(std::string tensor, text(row, "name"));
      FRESHET_ASSIGN(const std::string digest_text, text(row, "digest"));
      FRESHET_ASSIGN(const std::string segment_text, text(row, "segment"));
      Digest digest;
      if (!read_hex(digest_text, digest.high, digest.low)) return wrong("a tensor's \"digest\" is none");
      std::string_view index;
      const auto writer = parse_id(segment_text, &index);
      const auto of_writer = number_in<std::uint32_t>(index);
      if (!writer || !of_writer) return wrong("a tensor's \"segment\" is none");
      owners.push_back({.writer = *writer, .tensor = *of_writer});
      sheet.manifest.digests.push_back(digest);
      sheet.tensors.push_back(std::move(tensor));
    }
    sheet.manifest.owners = OwnerMap(std::move(owners));
    return {};
  }

  const JsonDocument& object_;
};

JsonDocument tensors_json(const VersionSheet& sheet) {
  JsonDocument rows = JsonDocument::array();
  if (!sheet.has_weights) return rows;
  const Manifest& manifest = sheet.manifest;
  for (std::size_t i = 0; i < sheet.tensors.size(); ++i) {
    rows.push_back({{"name", sheet.tensors[i]},
                    {"digest", to_hex(manifest.digests[i])},
                    {"segment", to_string(manifest.owners[i])}});
  }
  return rows;
}

}  // namespace

VersionSheet sheet_of(const VersionRecord& record, std::vector<std::string> aliases, std::int64_t exported_unix_ns) {
  VersionSheet sheet{.manifest = record.manifest,
                     .architecture = record.manifest.architecture->digest(),
                     .quality = record.quality,
                     .has_weights = record.has_weights,
                     .aliases = std::move(aliases),
                     .exported_unix_ns = exported_unix_ns};
  if (!record.has_weights) return sheet;
  for (const TensorSpec& tensor : record.manifest.architecture->tensors()) sheet.tensors.push_back(tensor.name);
  return sheet;
}

std::string to_json(const VersionSheet& sheet) {
  const Manifest& manifest = sheet.manifest;
  JsonDocument ancestor;
  if (manifest.ancestor) {
    ancestor["version"] =
        manifest.ancestor_name.number == 0 ? JsonDocument() : JsonDocument(to_string(manifest.ancestor_name));
    ancestor["id"] = to_string(*manifest.ancestor);
  }
  JsonDocument metrics = JsonDocument::array();
  for (const auto& [key, value] : manifest.metrics) metrics.push_back(JsonDocument::array({key, number_json(value)}));
  JsonDocument tags = JsonDocument::array();
  for (const auto& [key, value] : manifest.tags) tags.push_back(JsonDocument::array({key, value}));
  JsonDocument object;
  object["freshet_version"] = kFormatVersion;
  object["version"] = to_string(manifest.name);
  object["id"] = to_string(manifest.id);
  object["ancestor"] = std::move(ancestor);
  object["created_ns"] = manifest.created_unix_ns;
  object["exported_ns"] = sheet.exported_unix_ns;
  object["step"] = manifest.step;
  object["quality"] = sheet.quality ? number_json(*sheet.quality) : JsonDocument();
  object["has_weights"] = sheet.has_weights;
  object["has_graph"] = sheet.has_graph;
  object["metrics"] = std::move(metrics);
  object["tags"] = std::move(tags);
  object["aliases"] = sheet.aliases;
  object["architecture"] = to_hex(sheet.architecture);
  object["tensors"] = tensors_json(sheet);
  return object.dump(-1, ' ', false, JsonDocument::error_handler_t::replace);
}

Result<VersionSheet> parse_version_sheet(std::string_view json) {
  if (json.size() > kSheetBytesMax) return wrong(format("it has more than {} bytes", kSheetBytesMax));
  FRESHET_ASSIGN(const JsonDocument object, parse_json(json));
  return SheetReader(object).read();
}

}  // namespace freshet
