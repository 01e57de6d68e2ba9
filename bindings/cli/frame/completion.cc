// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/completion.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <sstream>
#include <vector>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "core/base/format.h"

namespace freshet::cli {
namespace {

struct Word {
  std::string text;
  std::string description;
};

/// One command of the tree: "repo put", its subcommands' names and its options' spellings.
struct Command {
  std::string path;
  std::vector<Word> subcommands;
  std::vector<Word> options;
};

std::vector<Word> options_of(const CLI::App& app) {
  std::vector<Word> words;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back({"--" + name, option->get_description()});
    for (const std::string& name : option->get_snames()) words.push_back({"-" + name, option->get_description()});
  }
  return words;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Command>& commands) {
  Command command{.path = path, .options = options_of(app)};
  const auto children = app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* child : children) command.subcommands.push_back({child->get_name(), child->get_description()});
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

struct CompletionArguments {
  std::string shell;
};

}  // namespace

std::string bash_completion(const CLI::App& root) {
  const std::vector<Command> commands = commands_of(root);
  return format(
      R"(# freshet completion for bash: source <(freshet completion bash)
_freshet() {{
  local command='' word words='' i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${{command:+$command }}${{COMP_WORDS[i]}}"
    case "$word" in {}) command="$word" ;; esac
  done
{}  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _freshet freshet
)",
      known_paths(commands), word_cases(commands, "words"));
}

std::string zsh_completion(const CLI::App& root) {
  const std::vector<Command> commands = commands_of(root);
  return format(
      R"(#compdef freshet
# freshet completion for zsh: source <(freshet completion zsh), or save it as _freshet in a folder of $fpath
_freshet() {{
  local command='' word known='' i
  for ((i = 2; i < CURRENT; i++)); do
    word="${{command:+$command }}${{words[i]}}"
    case "$word" in {}) command="$word" ;; esac
  done
{}  compadd -- ${{=known}}
  _files
}}
if [ "${{funcstack[1]}}" = _freshet ]; then _freshet "$@"; else compdef _freshet freshet; fi
)",
      known_paths(commands), word_cases(commands, "known"));
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
      text += format("complete -c freshet -n {} -{} {} -d {}\n", shell_quoted(condition), is_long ? 'l' : 's',
                     word.text.substr(is_long ? 2 : 1), shell_quoted(word.description));
    }
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
