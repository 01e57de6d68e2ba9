// SPDX-License-Identifier: Apache-2.0
// `freshet repo show`: all that is known about one version.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct ShowArguments {
  std::string version;
};

Json tensors_json(const Architecture& architecture, const std::vector<OwnerRow>& owners) {
  Json tensors = Json::array();
  const auto specs = architecture.tensors();
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const TensorSpec& spec = specs[i];
    tensors.push_back({{"name", spec.name},
                       {"dtype", name_of(spec.dtype)},
                       {"shape", spec.shape},
                       {"bytes", spec.bytes()},
                       {"role", name_of(spec.role)},
                       {"owner", i < owners.size() ? version_json(owners[i].owner) : Json()}});
  }
  return tensors;
}

Json record_json(const VersionRecord& record, const std::vector<OwnerRow>& owners,
                 const std::vector<std::string>& pins) {
  const Manifest& manifest = record.manifest;
  Json metrics = Json::object();
  for (const auto& [name, value] : manifest.metrics) metrics[name] = value;
  Json tags = Json::object();
  for (const auto& [key, value] : manifest.tags) tags[key] = value;
  return {{"model", manifest.name.model},
          {"version", manifest.name.number},
          {"ancestor", version_json(manifest.ancestor_name)},
          {"step", manifest.step},
          {"created_ms", manifest.created_unix_ns / kNanosecondsPerMillisecond},
          {"quality", quality_json(record.quality)},
          {"has_weights", record.has_weights},
          {"guessed", manifest.architecture->parts().guessed},
          {"layers", manifest.architecture->layers().size()},
          {"inherited_bytes", record.inherited_bytes},
          {"own_bytes", record.own_bytes},
          {"metrics", metrics},
          {"tags", tags},
          {"pins", pins},
          {"tensors", tensors_json(*manifest.architecture, owners)}};
}

std::string value_text(const Json& value) {
  return printable(value.is_string() ? value.get<std::string>() : to_line(value));
}

/// "loss=0.5 note=x". What could command a terminal stands as an escape.
std::string words_text(const Json& object) {
  std::string words;
  for (const auto& [key, value] : object.items()) {
    std::string text = to_line(value);
    if (value.is_string()) text = text.substr(1, text.size() - 2);  // Its quotes.
    words += format("{}{}={}", words.empty() ? "" : " ", printable(key), text);
  }
  return words.empty() ? "-" : words;
}

std::string record_text(const Json& record) {
  std::string text = format("{}@{}\n", value_text(record["model"]), value_text(record["version"]));
  std::vector<std::vector<std::string>> facts;
  for (const auto& [key, value] : record.items()) {
    if (key == "created_ms") {
      facts.push_back({"  created", date_text(value.get<std::int64_t>() * kNanosecondsPerMillisecond)});
    } else if (value.is_object()) {
      facts.push_back({"  " + key, words_text(value)});
    } else if (key != "model" && key != "version" && key != "tensors") {
      facts.push_back({"  " + key, value_text(value)});
    }
  }
  text += table(facts) + "\n\n";
  std::vector<std::vector<std::string>> rows = {{"TENSOR", "DTYPE", "SHAPE", "BYTES", "ROLE", "OWNER"}};
  for (const Json& tensor : record["tensors"]) {
    rows.push_back({value_text(tensor["name"]), value_text(tensor["dtype"]), value_text(tensor["shape"]),
                    value_text(tensor["bytes"]), value_text(tensor["role"]), value_text(tensor["owner"])});
  }
  return text + table(rows);
}

Result<ExitCode> show(Program& program, const VersionCatalog& repository, const ShowArguments& arguments) {
  FRESHET_ASSIGN(const VersionName asked, repository.resolve(arguments.version));
  FRESHET_ASSIGN(const VersionRecord record, repository.get(asked));
  std::vector<OwnerRow> owners;
  if (record.has_weights) {
    FRESHET_ASSIGN(owners, repository.owners(record.manifest.name));
  }
  FRESHET_ASSIGN(const std::vector<std::string> pins, repository.pins(record.manifest.name));
  const Json shown = record_json(record, owners, pins);
  FRESHET_TRY(program.out.emit(shown, program.out.json ? "" : record_text(shown)));
  return ExitCode::done;
}

}  // namespace

void add_show(CLI::App& repo, Program& program) {
  auto arguments = std::make_shared<ShowArguments>();
  CLI::App& command = add_catalog_command(repo, program, "show", "all facts of a version");
  add_reference(command, "MODEL[@V]", arguments->version, "the version; without @V the newest");
  command.footer(
      "A line of JSON: model, version, ancestor, step, created_ms, quality, has_weights, guessed, layers,\n"
      "inherited_bytes, own_bytes, metrics, tags, pins, tensors [{name, dtype, shape, bytes, role, owner}].\n"
      "example: freshet repo show net@3");
  act_on_repository(command, program, arguments, RepositoryAccess::read, show);
}

}  // namespace freshet::cli
