// SPDX-License-Identifier: Apache-2.0
// `freshet repo serve` and `freshet provider`: a repository that other processes use, until this one is interrupted.

#include <unistd.h>

#include "bindings/cli/frame/arguments.h"
#include "bindings/cli/provider/bucket_provider.h"
#include "bindings/cli/repo/new_folder.h"
#include "bindings/cli/repo/repo.h"
#include "bindings/runtime/bucket_place.h"
#include "core/base/format.h"
#include "repo/cluster/placement/membership.h"
#include "repo/cluster/providers.h"
#include "repo/serve/server.h"

namespace freshet::cli {
namespace {

constexpr Duration kRound = std::chrono::hours(1);

/// The address that the others have of this provider stands in their placement, and changes by `--join` alone. Says so
/// where it listens elsewhere, or on every interface, which tells no address.
void tell_of_other_address(Program& program, ProviderRepository& own, const RepositoryServer& offered,
                           const ServeArguments& arguments) {
  if (!arguments.join.empty()) return;
  const auto placement = cluster::placement_at(own);
  const auto id = provider_id(own);
  if (!placement || !id || placement->providers().size() < 2) return;
  const std::size_t at = placement->index_of(*id);
  if (at == placement->providers().size()) return;
  const std::string& told = placement->providers()[at].address;
  if (told == offered.address()) return;
  program.out.log(
      format("the other providers look for this one at {}; if its address has changed, start it again with --join "
             "ADDRESS, the address of one of the others",
             told));
}

/// What is offered, in the order in which it comes into being.
struct Offered {
  OpenedRepository repository;
  std::unique_ptr<RepositoryServer> server;  ///< Besides the folder's own; null without --listen.

  ProviderRepository& own() const { return *repository.get_deleter().own(); }
  const RepositoryServer* door() const { return server ? server.get() : repository.get_deleter().server(); }
};

/// `known` is set once other providers may know of this one.
Result<Offered> offer(const Program& program, const ServeArguments& arguments, bool& known) {
  FRESHET_ASSIGN(OpenedRepository repository, open_repository(program.repository, {.access = RepositoryAccess::own}));
  Offered offered{.repository = std::move(repository)};
  if (!arguments.listen.empty()) {
    FRESHET_ASSIGN(offered.server, RepositoryServer::open(offered.own(), {.address = arguments.listen,
                                                                          .security = arguments.security,
                                                                          .channels = arguments.channels}));
  }
  if (offered.door() == nullptr) {
    return fail(Code::unavailable, program.repository + ": no socket can be made in the folder; give --listen");
  }
  if (arguments.join.empty()) return offered;
  const std::string& address = arguments.reached_at.empty() ? offered.door()->address() : arguments.reached_at;
  const auto joined = join_providers(offered.own(), address, arguments.join, {.security = arguments.security}, &known);
  if (joined) return offered;
  Error error = Error(joined.error()).with_context("join " + arguments.join);
  if (!known) return fail(std::move(error));
  return fail(error.code(), format("{} (the other providers may count this one already: keep {}, and start it again "
                                   "with the same command when all of them run)",
                                   error.message(), program.repository));
}

Result<ExitCode> serve(Program& program, const ServeArguments& arguments) {
  if (is_store_place(program.repository)) return provide_bucket(program, arguments);
  if (is_repository_address(program.repository)) {
    return fail(Code::invalid_argument,
                program.repository +
                    " is a server already; a provider owns what it serves: give --repo FOLDER, s3:// or rados://");
  }
  const Interrupt::Deferral deferral;
  program.out.outlives_full_disk = true;
  const NewFolder folder(program.repository);
  bool known = false;
  Result<Offered> offered = offer(program, arguments, known);
  if (!offered) {
    if (!known) folder.remove_unused();
    return fail(std::move(offered).error());
  }
  const RepositoryServer& door = *offered->door();
  tell_of_other_address(program, offered->own(), door, arguments);
  FRESHET_TRY(program.out.emit(
      {{"repository", program.repository}, {"address", door.address()}, {"pid", ::getpid()}, {"standby", false}},
      format("{} is served at {}", printable(program.repository), served_at(door.address(), arguments.listen))));
  while (!program.interrupt.wait_until(system_clock().now() + kRound)) {
  }
  return ExitCode::interrupted;
}

void add(CLI::App& command, Program& program) {
  auto arguments = std::make_shared<ServeArguments>();
  add_address(command, arguments->listen, AddressUse::bind,
              "an additional address to listen on: tcp://ADDRESS:PORT (beyond this host with keys), ipc:///PATH");
  add_offer(command, arguments->channels);
  add_security(command, arguments->security, arguments->listen, AddressUse::bind);
  command
      .add_option("--join", arguments->join,
                  "keep one repository together with the provider at ADDRESS (or A,B,C) and its other providers")
      ->type_name("ADDRESS")
      ->check(reachable_check(true));
  command
      .add_option(
          "--reached-at", arguments->reached_at,
          "with --join, or for a bucket or a pool: the address that others get for this provider (default: the printed "
          "one)")
      ->type_name("ADDRESS")
      ->check(reachable_check(false));
  command
      .add_option("--server-key", arguments->security.server_key,
                  "the providers' public key, or its NAME.pub; the providers of one repository share one pair of keys")
      ->type_name("KEY");
  command.footer(
      "Owns the folder; makes it if it does not exist. This user's other commands find the provider by the folder's "
      "name,\n"
      "other hosts by the address. In a bucket or a pool of Ceph, the first provider is the owner, and others are "
      "standbys that take over.\n"
      "A line of JSON: repository, address, pid, standby; a standby that takes over prints another line.\n"
      "example: freshet provider --repo store --listen 'tcp://*:7080' --keys store-key --allow clients.allow\n"
      "         freshet repo ls --repo tcp://store.example:7080 --keys me --server-key store-key.pub");
  command.callback([&program, arguments] {
    require_repository(program);
    if (!arguments->reached_at.empty() && arguments->join.empty() && !is_store_place(program.repository)) {
      throw CLI::ValidationError("--reached-at needs --join: other providers get an address only in a join; give both");
    }
    program.action = [&program, arguments] { return serve(program, *arguments); };
  });
}

}  // namespace

void add_serve(CLI::App& repo, Program& program) {
  CLI::App& command = *repo.add_subcommand("serve", "serve the repository to other processes and hosts");
  add_json_flag(command, program);
  add_repository_option(command, program);
  add(command, program);
}

void add_provider(CLI::App& root, Program& program) {
  CLI::App& command = *root.add_subcommand("provider", "own a repository, and serve it to other processes and hosts");
  add_json_flag(command, program);
  add_repository_option(command, program);
  add(command, program);
}

}  // namespace freshet::cli
