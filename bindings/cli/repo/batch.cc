#include "bindings/cli/repo/batch.h"

#include <cmath>
#include <fstream>
#include <iostream>

#include "core/format.h"
#include "core/json_document.h"

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
    return fail(Code::invalid_argument, format("no text \"{}\"", key));
  return member->get<std::string>();
}

Result<StageRequest> request_of(const Repository& repository, const std::string& line) {
  FRESHET_ASSIGN(const Json object, parse_json(line));
  if (!object.is_object()) return fail(Code::invalid_argument, "no JSON object");
  for (const auto& [key, value] : object.items()) {
    if (key != "model" && key != "graph" && key != "quality" && key != "ancestor") {
      return fail(Code::invalid_argument, format("unknown key \"{}\"", key));
    }
  }
  StageRequest request;
  FRESHET_ASSIGN(request.model, text_member(object, "model"));
  FRESHET_TRY(check_model_name(request.model));
  if (!object.contains("graph")) return fail(Code::invalid_argument, "no \"graph\"");
  FRESHET_ASSIGN(request.architecture, parse_graph_json(to_line(object["graph"])));
  if (object.contains("quality") && !object["quality"].is_null()) {
    if (!object["quality"].is_number()) return fail(Code::invalid_argument, "\"quality\" is no number");
    request.quality = object["quality"].get<double>();
  }
  if (object.contains("ancestor") && !object["ancestor"].is_null()) {
    FRESHET_ASSIGN(const std::string ancestor, text_member(object, "ancestor"));
    FRESHET_ASSIGN(request.ancestor, repository.resolve(ancestor));
  }
  return request;
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
    const Result<Json> result = end == LineEnd::line
                                    ? answer(line)
                                    : fail(Code::invalid_argument, format("longer than {} bytes", kBatchLineBytesMax));
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

Result<ExitCode> put_batch(Program& program, Repository& repository, const std::string& path) {
  return for_each_line(
      program, path,
      [&repository](const std::string& line) -> Result<Json> {
        FRESHET_ASSIGN(const StageRequest request, request_of(repository, line));
        return put_one(repository, request);
      },
      text_of_put);
}

}  // namespace freshet::cli
