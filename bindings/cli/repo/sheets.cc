// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/repo/sheets.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>

#include "bindings/cli/frame/durable_file.h"
#include "bindings/cli/frame/graph_file.h"
#include "bindings/cli/frame/progress.h"
#include "bindings/cli/repo/repo.h"
#include "core/base/format.h"
#include "core/safetensors/model_file.h"

namespace freshet::cli {
namespace {

namespace fs = std::filesystem;

std::string path_of(const std::string& stem, std::string_view end) { return stem + std::string(end); }

Result<VersionSheet> read_sheet(const std::string& stem) {
  const std::string path = path_of(stem, kSheetEnd);
  FRESHET_ASSIGN(const std::string text, read_text_file(path, kSheetBytesMax));
  Result<VersionSheet> sheet = parse_version_sheet(text);
  if (!sheet) return fail(std::move(sheet).error().with_context(path));
  return sheet;
}

/// What an alias meant when it was exported last, by "model@alias".
struct Claim {
  std::int64_t exported_unix_ns = 0;
  VersionName name;  ///< As the version goes by here.
  std::string alias;
};
using Claims = std::map<std::string, Claim>;

void claim(Claims& claims, const VersionSheet& sheet, const VersionName& name) {
  for (const std::string& alias : sheet.aliases) {
    const Claim one{.exported_unix_ns = sheet.exported_unix_ns, .name = name, .alias = alias};
    const auto [known, first] = claims.try_emplace(format("{}@{}", name.model, alias), one);
    if (!first && known->second.exported_unix_ns <= one.exported_unix_ns) known->second = one;
  }
}

/// Only where the alias means nothing here yet; what it means otherwise is said, and stays.
Status set_aliases(Program& program, Repository& repository, const Claims& claims) {
  for (const auto& [label, claimed] : claims) {
    FRESHET_ASSIGN(const std::vector<Alias> here, repository.aliases(claimed.name.model));
    const auto known = std::ranges::find(here, claimed.alias, &Alias::name);
    if (known != here.end() && known->number == claimed.name.number) continue;
    const Status set = repository.set_alias(claimed.name.model, claimed.alias, 0, claimed.name.number);
    if (set) continue;
    if (set.error().code() != Code::failed_precondition) return fail(Error(set.error()).with_context(label));
    program.out.log(format("alias {} is not changed here: {}", label, set.error().message()));
  }
  return {};
}

struct RestoredFile {
  Restored restored;
  VersionSheet sheet;
};

Result<RestoredFile> restore_one(Repository& repository, const SheetSource& source, bool deltas) {
  RestoredFile file;
  FRESHET_ASSIGN(file.sheet, read_sheet(source.stem));
  RestoreRequest request{.sheet = &file.sheet, .deltas = deltas};
  if (file.sheet.has_graph) {
    FRESHET_ASSIGN(request.architecture, read_graph(path_of(source.stem, kGraphEnd)));
  }
  std::optional<ModelFile> weights;
  if (file.sheet.has_weights) {
    FRESHET_ASSIGN(ModelFile read, ModelFile::read(path_of(source.stem, kWeightsEnd)));
    weights.emplace(std::move(read));
    request.tensors = std::span<const TensorView>(weights->tensors());
  }
  Result<Restored> restored = restore_version(repository, request);
  if (!restored) {
    Error error = std::move(restored).error();
    const bool is_theirs = error.code() == Code::corrupt;
    error = std::move(error).with_context(path_of(source.stem, kSheetEnd));
    if (!is_theirs) return fail(std::move(error));
    return fail(error.code(), error.message() + "; use --plain to import the files without their sheets");
  }
  file.restored = *std::move(restored);
  return file;
}

Status tell(Program& program, const SheetSource& source, const RestoredFile& file) {
  const Restored& restored = file.restored;
  const VersionName& before = file.sheet.manifest.name;
  Json line = {{"model", restored.name.model},
               {"version", restored.name.number},
               {"inherited_bytes", restored.inherited_bytes},
               {"own_bytes", restored.own_bytes},
               {"file", source.has_weights ? Json(path_of(source.stem, kWeightsEnd)) : Json()},
               {"guessed", !file.sheet.has_graph}};
  std::string remark;
  if (restored.name != before) {
    line["exported_as"] = to_string(before);
    remark += format("  (was {}; that number is taken here)", to_string(before));
  }
  if (restored.was_there) {
    line["was_there"] = true;
    remark += "  (was here already)";
  }
  return program.out.emit(line, format("{}  {}{}", to_string(restored.name), printable(source.stem), remark));
}

}  // namespace

Result<SheetSource> read_sheet_source(const std::string& stem) {
  FRESHET_ASSIGN(const VersionSheet sheet, read_sheet(stem));
  SheetSource source{.stem = stem,
                     .place = {.name = sheet.manifest.name,
                               .id = sheet.manifest.id,
                               .ancestor = sheet.manifest.ancestor,
                               .created_unix_ns = sheet.manifest.created_unix_ns},
                     .has_weights = sheet.has_weights};
  std::error_code error;
  if (sheet.has_weights) source.bytes = fs::file_size(path_of(stem, kWeightsEnd), error);
  // What is missing is told when its turn comes.
  if (error) source.bytes = 0;
  return source;
}

Result<ExitCode> restore_all(Program& program, Repository& repository, const std::vector<SheetSource>& sources,
                             const RestoreOptions& options, std::uint64_t& done) {
  std::vector<RestorePlace> places;
  for (const SheetSource& source : sources) places.push_back(source.place);
  Claims claims;
  std::uint64_t left_out = 0;
  for (const std::size_t at : restore_order(places)) {
    if (program.interrupt.requested()) return ExitCode::interrupted;
    Result<RestoredFile> file = [&] {
      ProgressBar bar("import");
      bar.show(done, options.total_bytes);
      return restore_one(repository, sources[at], options.deltas);
    }();
    done += sources[at].bytes;
    // It was retired here since, or the like: the others come all the same.
    if (!file && file.error().code() == Code::failed_precondition) {
      program.out.log(file.error().message());
      ++left_out;
      continue;
    }
    if (!file) return fail(std::move(file).error());
    claim(claims, file->sheet, file->restored.name);
    FRESHET_TRY(tell(program, sources[at], *file));
  }
  FRESHET_TRY(set_aliases(program, repository, claims));
  if (left_out == 0) return ExitCode::done;
  return fail(Code::failed_precondition,
              format("{} of {} versions were not restored; see the lines above", left_out, sources.size()));
}

Status write_sheet(const Repository& repository, const VersionRecord& record, bool has_graph, const std::string& stem) {
  const VersionName& name = record.manifest.name;
  FRESHET_ASSIGN(const std::vector<Alias> all, repository.aliases(name.model));
  std::vector<std::string> aliases;
  for (const Alias& alias : all) {
    if (alias.number == name.number) aliases.push_back(alias.name);
  }
  VersionSheet sheet = sheet_of(record, std::move(aliases), system_clock().unix_ns());
  sheet.has_graph = has_graph;
  return write_text_file(path_of(stem, kSheetEnd), to_json(sheet) + "\n");
}

}  // namespace freshet::cli
