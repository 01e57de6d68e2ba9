// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Options that several commands have, checked while the line is parsed, so that a wrong one is wrong usage (exit code
/// 2) and says which.

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <utility>

#include "bindings/cli/frame/program.h"
#include "core/base/clock.h"
#include "core/model/ids.h"
#include "transport/channel_kind.h"
#include "transport/security.h"

namespace freshet::cli {

/// --json, at every level of the tree.
void add_json_flag(CLI::App& command, Program& program);

/// MODEL, required.
void add_model(CLI::App& command, std::string& model);
/// MODEL or MODEL@V, required.
void add_version(CLI::App& command, const std::string& name, std::string& version, const std::string& description);

/// --at ADDRESS, of a publisher's control socket; to bind also --listen.
enum class AddressUse { bind, connect };
/// ADDRESS, or ADDRESS[,ADDRESS…], of the process to connect to.
CLI::Validator reachable_check(bool several);
void add_address(CLI::App& command, std::string& address, AddressUse use, const std::string& description);

/// How people are told where `listen`, which an add_address() took, is served: `address`, and how far it reaches.
std::string served_at(const std::string& address, const std::string& listen);

/// --at ADDRESS[,ADDRESS…], of publishers or relays, in order of preference.
void add_addresses(CLI::App& command, std::string& addresses, const std::string& description);

/// --channel, how bytes come.
void add_channel(CLI::App& command, std::optional<ChannelKind>& channel);

/// --offer, the kinds of channels by which others may fetch bytes from here.
CLI::Option* add_offer(CLI::App& command, ChannelChoice& channels);

/// --directory, where publishers and subscribers find each other.
void add_directory(CLI::App& command, std::string& directory);

/// --keys with --allow (to bind) or --server-key (to connect), --open-loopback, and --trusted-fabric. An address that
/// is not of this host is wrong usage without them.
void add_security(CLI::App& command, SecurityOptions& security, const std::string& address, AddressUse use);

/// --keys, --server-key and --open-loopback, for a place that may be a repository's address.
void add_client_keys(CLI::App& command, SecurityOptions& security);

/// --open-loopback of who connects: loopback ports of other users of this host are believed, too.
void add_open_loopback(CLI::App& command, SecurityOptions& security);

/// REQUIRES: add_version's check passed.
VersionName version_of(const std::string& text);

CLI::Validator model_check();
CLI::Validator version_check();
/// A finite number of seconds, 0 or more.
CLI::Validator seconds_check();
/// A whole number from 1.
CLI::Validator positive_check();
/// A finite number.
CLI::Validator number_check();
/// K=V with a key.
CLI::Validator tag_check();

/// A time in seconds; `value` is a double, or an optional one.
template <typename Value>
CLI::Option* add_seconds(CLI::App& command, const std::string& name, Value& value, const std::string& description) {
  return command.add_option(name, value, description)->check(seconds_check())->type_name("S");
}

/// Adds an option. `parse` turns the option's text into `value`. A text that `parse` refuses is wrong usage.
template <typename Value, typename Parse>
CLI::Option* add_parsed(CLI::App& command, const std::string& name, Value& value, Parse parse,
                        const std::string& description) {
  const auto take = [&value, parse](const std::string& text) {
    auto parsed = parse(text);
    if (!parsed) throw CLI::ValidationError(parsed.error().message());
    value = *std::move(parsed);
  };
  return command.add_option_function<std::string>(name, take, description);
}

Duration seconds(double value);
std::pair<std::string, std::string> tag_of(const std::string& text);

/// Runs `act(arguments)` when the command was chosen. `arguments` is shared with the options that fill it.
template <typename Arguments, typename Act>
void act_with(CLI::App& command, Program& program, std::shared_ptr<Arguments> arguments, Act act) {
  command.callback([&program, arguments, act] {
    program.action = [&program, arguments, act]() -> Result<ExitCode> { return act(program, *arguments); };
  });
}

}  // namespace freshet::cli
