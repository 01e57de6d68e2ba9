// SPDX-License-Identifier: Apache-2.0
// `freshet keygen`: a pair of keys for publishers and subscribers on different hosts.

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/frame/program.h"
#include "core/base/format.h"
#include "transport/security/keys.h"

namespace freshet::cli {
namespace {

struct KeygenArguments {
  std::string name;
};

Result<ExitCode> keygen(Program& program, const KeygenArguments& arguments) {
  FRESHET_ASSIGN(const KeyPair keys, KeyPair::generate());
  FRESHET_TRY(keys.write(arguments.name));
  const std::string& key = keys.public_key().text();
  FRESHET_TRY(program.out.emit(
      {{"key_file", arguments.name}, {"public_file", arguments.name + ".pub"}, {"public_key", key}},
      format("{0}      the secret: stays on this host\n{0}.pub  {1}", printable(arguments.name), key)));
  return ExitCode::done;
}

}  // namespace

void add_keygen(CLI::App& root, Program& program) {
  auto arguments = std::make_shared<KeygenArguments>();
  CLI::App& command = *root.add_subcommand("keygen", "make keys for streaming between hosts");
  add_json_flag(command, program);
  command.add_option("NAME", arguments->name, "the files are NAME, the secret, and NAME.pub")->required();
  command.footer(
      "On the trainer's host:  freshet keygen trainer;  cat server.pub >> servers.allow\n"
      "                        freshet publish demo --watch DIR --listen 'tcp://*:7070' --keys trainer --allow "
      "servers.allow\n"
      "On the server's host:   freshet keygen server\n"
      "                        freshet subscribe demo --at tcp://trainer:7070 --keys server --server-key trainer.pub");
  act_with(command, program, arguments, keygen);
}

}  // namespace freshet::cli
