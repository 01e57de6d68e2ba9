// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/completion/completion.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

#include "bindings/cli/completion/values.h"
#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct Word {
  std::string text;
  std::string description;
  std::string kind;  ///< Of an option's value: value_kind().
};

/// One command of the tree: "repo put", its subcommands' names, its options' spellings, and its positionals' kinds.
struct Command {
  std::string path;
  std::vector<Word> subcommands;
  std::vector<Word> options;
  std::vector<std::string> positionals;
};

void add_options(const CLI::App& app, Command& command) {
  for (const CLI::Option* option : app.get_options()) {
    const std::string kind = value_kind(*option, command.path);
    const std::string description = option->get_description();
    for (const std::string& name : option->get_lnames()) command.options.push_back({"--" + name, description, kind});
    for (const std::string& name : option->get_snames()) command.options.push_back({"-" + name, description, kind});
    if (option->get_positional()) command.positionals.push_back(kind);
  }
}

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  Command command{.path = path};
  add_options(app, command);
  const auto children = app.get_subcommands([](const CLI::App* child) { return !child->get_group().empty(); });
  for (const CLI::App* child : children)
    command.subcommands.push_back({child->get_name(), child->get_description(), ""});
  commands.push_back(command);
  for (const CLI::App* child : children) {
    collect(*child, path.empty() ? child->get_name() : path + " " + child->get_name(), commands);
  }
}

std::vector<Command> commands_of(const CLI::App& root) {
  std::vector<Command> commands;
  collect(root, "", commands);
  return commands;
}

std::string joined(const std::vector<Word>& first, const std::vector<Word>& second) {
  std::string text;
  for (const auto* words : {&first, &second}) {
    for (const Word& word : *words) text += (text.empty() ? "" : " ") + word.text;
  }
  return text;
}

/// In single quotes, for all three shells.
std::string shell_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// A `case` that sets `variable` by the command that stands on the line.
std::string word_cases(const std::vector<Command>& commands, const std::string& variable) {
  std::string text = "  case \"$command\" in\n";
  for (const Command& command : commands) {
    text += format("    {}) {}={} ;;\n", shell_quoted(command.path), variable,
                   shell_quoted(joined(command.subcommands, command.options)));
  }
  return text + "  esac\n";
}

/// A pattern of the paths that have subcommands, below which the next plain word goes on with the path.
std::string known_paths(const std::vector<Command>& commands) {
  std::string text;
  for (const Command& command : commands) {
    if (!command.path.empty()) text += (text.empty() ? "" : "|") + shell_quoted(command.path);
  }
  return text;
}

/// A `case` that sets `kind` by what is asked: "COMMAND --option", or "COMMAND #2" for its second positional. The last
/// positional may be there several times.
std::string kind_cases(const std::vector<Command>& commands) {
  std::string text = "  case \"$1\" in\n";
  for (const Command& command : commands) {
    const auto add = [&](const std::string& pattern, const std::string& kind) {
      if (!kind.empty()) text += format("    {}) kind={} ;;\n", pattern, shell_quoted(kind));
    };
    for (const Word& word : command.options) add(shell_quoted(command.path + " " + word.text), word.kind);
    for (std::size_t i = 0; i < command.positionals.size(); ++i) {
      const bool is_last = i + 1 == command.positionals.size();
      add(is_last ? shell_quoted(command.path + " #") + "*" : shell_quoted(format("{} #{}", command.path, i + 1)),
          command.positionals[i]);
    }
  }
  return text + "    *) kind='' ;;\n  esac\n";
}

/// The functions that bash and zsh share. After _freshet_look WORD…, the words before the one that is completed,
/// `command` is the command that the line got to, and `kind` what comes next; `place` has the line's --repo and
/// --directory.
std::string shared_functions(const std::vector<Command>& commands) {
  return format(R"sh(_freshet_kind() {{
{}}}
_freshet_look() {{
  local word next option='' position=1
  command='' place=()
  for word in "$@"; do
    if [ -n "$option" ]; then
      case "$option" in --repo|--directory) place+=("$option" "$word") ;; esac
      option=''
      continue
    fi
    next="${{command:+$command }}$word"
    case "$next" in {}) command="$next"; position=1; continue ;; esac
    case "$word" in
      -*) _freshet_kind "$command $word"; if [ -n "$kind" ]; then option="$word"; fi ;;
      *) position=$((position + 1)) ;;
    esac
  done
  _freshet_kind "$command ${{option:-#$position}}"
  has_option="$option"
}}
_freshet_values() {{
  case "$kind" in
    words:*) echo "${{kind#words:}}" ;;
    published*|stored*) "$program" complete "$kind" "${{place[@]}}" 2> /dev/null ;;
  esac
}}
)sh",
                kind_cases(commands), known_paths(commands));
}

/// True on lines that name every word of the path.
std::string fish_condition(const std::string& path) {
  if (path.empty()) return "__fish_use_subcommand";
  std::istringstream words(path);
  std::string condition;
  for (std::string word; words >> word;) {
    condition += (condition.empty() ? "" : "; and ") + format("__fish_seen_subcommand_from {}", word);
  }
  return condition;
}

/// How an option's value is completed.
std::string fish_values(const std::string& kind) {
  if (kind.empty()) return "";
  if (kind == "path") return " -r -F";
  if (kind.starts_with("words:")) return " -x -a " + shell_quoted(kind.substr(std::string_view("words:").size()));
  return kind == "none" ? " -x" : format(" -x -a '(freshet complete {} 2> /dev/null)'", kind);
}

struct CompletionArguments {
  std::string shell;
};

}  // namespace

std::string bash_completion(const CLI::App& root) {
  const std::vector<Command> commands = commands_of(root);
  return format(
      R"sh(# freshet completion for bash: source <(freshet completion bash)
{}_freshet() {{
  local command kind has_option words='' current='' prefix='' typed program line place value
  typed="${{COMP_LINE:0:COMP_POINT}}"
  read -ra line <<< "$typed"
  program="${{line[0]/#\~/$HOME}}"
  case "$typed" in
    *[[:space:]]) ;;
    *) current="${{line[${{#line[@]}}-1]}}"; unset "line[${{#line[@]}}-1]" ;;
  esac
  _freshet_look "${{line[@]:1}}"
  COMPREPLY=()
  if [ -z "$has_option" ]; then
    case "$current" in -*) kind=none ;; esac
{}  fi
  case "$kind" in
    path) ;;
    *) compopt +o default 2> /dev/null; value="$(_freshet_values)"; words="${{value:-$words}}" ;;
  esac
  # Bash takes : and = for ends of words, and replaces what comes after them; of an @ and what comes after it, both.
  case "$COMP_WORDBREAKS" in *@*) prefix="${{current%"${{current##*[@:=]}}"}}"; prefix="${{prefix%@}}" ;; esac
  # Words may come from another host: nothing in them is expanded.
  local -
  set -f
  for value in $words; do
    case "$value" in "$current"*) COMPREPLY+=("${{value#"$prefix"}}") ;; esac
  done
}}
complete -o default -F _freshet freshet
)sh",
      shared_functions(commands), word_cases(commands, "words"));
}

std::string zsh_completion(const CLI::App& root) {
  const std::vector<Command> commands = commands_of(root);
  return format(
      R"sh(#compdef freshet
# freshet completion for zsh: source <(freshet completion zsh), or save it as _freshet in a folder of $fpath
{}_freshet() {{
  local command kind has_option known='' values='' program="${{words[1]/#\~/$HOME}}"
  local -a place
  _freshet_look "${{(@)words[2,CURRENT-1]}}"
  if [ -z "$has_option" ]; then
{}  fi
  values="$(_freshet_values)"
  known="${{values:-$known}}"
  compadd -- ${{=known}}
  if [ "$kind" = path ]; then _files; fi
}}
if [ "${{funcstack[1]}}" = _freshet ]; then _freshet "$@"; else compdef _freshet freshet; fi
)sh",
      shared_functions(commands), word_cases(commands, "known"));
}

std::string fish_completion(const CLI::App& root) {
  std::string text = "# freshet completion for fish: freshet completion fish | source\n";
  for (const Command& command : commands_of(root)) {
    const std::string condition = fish_condition(command.path);
    for (const Word& word : command.subcommands) {
      text += format("complete -c freshet -f -n {} -a {} -d {}\n", shell_quoted(condition), word.text,
                     shell_quoted(word.description));
    }
    for (const Word& word : command.options) {
      const bool is_long = word.text.starts_with("--");
      text += format("complete -c freshet -n {} -{} {}{} -d {}\n", shell_quoted(condition), is_long ? 'l' : 's',
                     word.text.substr(is_long ? 2 : 1), fish_values(word.kind), shell_quoted(word.description));
    }
    // The shell does not tell which positional it is: the first one's words, and files where any is one.
    const bool has_paths = std::ranges::find(command.positionals, "path") != command.positionals.end();
    if (command.positionals.empty()) continue;
    const std::string values = fish_values(command.positionals.front());
    text += format("complete -c freshet -n {}{}{}\n", shell_quoted(condition), has_paths ? "" : " -f",
                   values.starts_with(" -x -a") ? values.substr(3) : "");
  }
  return text;
}

void add_completion(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<CompletionArguments>();
  CLI::App& command = *root.add_subcommand("completion", "print a completion script for a shell");
  command.add_option("SHELL", arguments->shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command.footer("example: source <(freshet completion bash)");
  act_with(command, program, arguments, [&root](Program& at, const CompletionArguments& chosen) -> Result<ExitCode> {
    const auto script = chosen.shell == "bash"  ? bash_completion
                        : chosen.shell == "zsh" ? zsh_completion
                                                : fish_completion;
    FRESHET_TRY(at.out.write(script(root)));
    return ExitCode::done;
  });
}

}  // namespace freshet::cli
