// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/repo/batch.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "bindings/cli/frame/model_file.h"
#include "core/base/format.h"
#include "core/json/json_document.h"
#include "core/safetensors/model_file.h"

namespace freshet::cli {
namespace {

enum class LineEnd { line, end, too_long };

/// Reads up to the next newline; what is over the limit is skipped, not kept.
LineEnd read_line(std::istream& in, std::string& line) {
  line.clear();
  bool too_long = false;
  bool any = false;
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    any = true;
    if (c == '\n') return too_long ? LineEnd::too_long : LineEnd::line;
    if (line.size() < kBatchLineBytesMax) {
      line += static_cast<char>(c);
    } else {
      too_long = true;
    }
  }
  if (!any) return LineEnd::end;
  return too_long ? LineEnd::too_long : LineEnd::line;
}

Result<std::string> text_member(const Json& object, const char* key) {
  const auto member = object.find(key);
  if (member == object.end() || !member->is_string())
    return fail(Code::invalid_argument, format("\"{}\" is missing, or not a string", key));
  return member->get<std::string>();
}

Result<Tags> tags_of(const Json& object) {
  if (!object.is_object()) return fail(Code::invalid_argument, "\"tags\" is not an object");
  Tags tags;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) return fail(Code::invalid_argument, format("tag \"{}\" is not text", key));
    tags.emplace_back(key, value.get<std::string>());
  }
  return tags;
}

/// One line, and the file that it names.
struct BatchPut {
  StageRequest request;
  std::optional<ModelFile> weights;
};

Status check_keys(const Json& object) {
  constexpr std::array<std::string_view, 6> kKeys = {"model", "graph", "weights", "quality", "ancestor", "tags"};
  for (const auto& [key, value] : object.items()) {
    if (std::ranges::find(kKeys, key) != kKeys.end()) continue;
    return fail(Code::invalid_argument, format("unknown key \"{}\"", key));
  }
  return {};
}

bool has(const Json& object, const char* key) { return object.contains(key) && !object[key].is_null(); }

/// `folder` is where the batch lies; empty for stdin.
Result<BatchPut> put_of(const Output& out, const Repository& repository, const std::string& folder,
                        const StageRequest& common, const std::string& line) {
  FRESHET_ASSIGN(const Json object, parse_json(line));
  if (!object.is_object()) return fail(Code::invalid_argument, "the line is not a JSON object");
  FRESHET_TRY(check_keys(object));
  BatchPut put{.request = common, .weights = {}};
  StageRequest& request = put.request;
  FRESHET_ASSIGN(request.model, text_member(object, "model"));
  FRESHET_TRY(check_model_name(request.model));
  if (!has(object, "graph") && !has(object, "weights")) {
    return fail(Code::invalid_argument, "neither \"graph\" nor \"weights\"");
  }
  if (has(object, "graph")) {
    FRESHET_ASSIGN(request.architecture, parse_graph_json(to_line(object["graph"])));
  }
  if (object.contains("quality") && !object["quality"].is_null()) {
    if (!object["quality"].is_number()) return fail(Code::invalid_argument, "\"quality\" is not a number");
    request.quality = object["quality"].get<double>();
  }
  if (object.contains("ancestor") && !object["ancestor"].is_null()) {
    FRESHET_ASSIGN(const std::string ancestor, text_member(object, "ancestor"));
    FRESHET_ASSIGN(request.ancestor, repository.resolve(ancestor));
  }
  if (has(object, "tags")) {
    FRESHET_ASSIGN(request.tags, tags_of(object["tags"]));
  }
  // Last, since all else costs less to be wrong about.
  if (!has(object, "weights")) return put;
  FRESHET_ASSIGN(const std::string file, text_member(object, "weights"));
  FRESHET_ASSIGN(ModelFile weights, open_weights((std::filesystem::path(folder) / file).string(), common.deltas));
  put.weights.emplace(std::move(weights));
  log_left_out(out, file, *put.weights);
  request.tags = merged_tags(put.weights->tags(), std::move(request.tags));
  request.tensors = std::span<const TensorView>(put.weights->tensors());
  request.step = put.weights->step();
  request.metrics = put.weights->metrics();
  return put;
}

}  // namespace

Result<ExitCode> for_each_line(Program& program, const std::string& path,
                               const std::function<Result<Json>(const std::string& line)>& answer,
                               const std::function<std::string(const Json&)>& text_of) {
  std::ifstream file;
  if (path != "-") file.open(path, std::ios::binary);
  if (path != "-" && !file) return fail_errno(errno, path);
  std::istream& in = path == "-" ? std::cin : file;
  ExitCode code = ExitCode::done;
  std::string line;
  for (std::uint64_t number = 1;; ++number) {
    const LineEnd end = read_line(in, line);
    if (end == LineEnd::end) break;
    if (end == LineEnd::line && line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const Result<Json> result =
        end == LineEnd::line
            ? answer(line)
            : fail(Code::invalid_argument, format("the line is longer than {} bytes", kBatchLineBytesMax));
    if (result) {
      FRESHET_TRY(program.out.emit(*result, text_of(*result)));
    } else {
      code = ExitCode::failed;
      FRESHET_TRY(program.out.emit({{"error", result.error().message()}, {"line", number}},
                                   format("line {}: {}", number, printable(result.error().message()))));
    }
  }
  if (in.bad()) return fail(Code::io_error, path + ": cannot be read");
  return code;
}

Tags merged_tags(Tags metadata, Tags tags) {
  for (auto& tag : tags) {
    const auto same = std::ranges::find(metadata, tag.first, &std::pair<std::string, std::string>::first);
    if (same == metadata.end()) {
      metadata.push_back(std::move(tag));
    } else {
      same->second = std::move(tag.second);
    }
  }
  return metadata;
}

Result<ExitCode> put_batch(Program& program, Repository& repository, const std::string& path,
                           const StageRequest& common) {
  const std::string folder = path == "-" ? std::string() : std::filesystem::path(path).parent_path().string();
  return for_each_line(
      program, path,
      [&](const std::string& line) -> Result<Json> {
        FRESHET_ASSIGN(const BatchPut put, put_of(program.out, repository, folder, common, line));
        return put_one(repository, put.request, put.weights ? &*put.weights : nullptr);
      },
      text_of_put);
}

}  // namespace freshet::cli
