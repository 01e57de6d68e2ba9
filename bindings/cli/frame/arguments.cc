// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/frame/arguments.h"

#include <algorithm>
#include <cmath>

#include "core/base/check.h"
#include "core/base/text.h"
#include "core/model/manifest.h"
#include "core/words/number.h"
#include "transport/file/folder_follower.h"
#include "transport/option_text.h"
#include "transport/zmq/address.h"

namespace freshet::cli {
namespace {

/// All of the text as a finite number, or nothing.
std::optional<double> finite(const std::string& text) {
  const auto value = number_in<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

}  // namespace

void add_json_flag(CLI::App& command, Program& program) {
  command.add_flag("--json", program.out.json,
                   "print JSON for programs: one object per line on stdout, and nothing else on stdout");
}

void add_model(CLI::App& command, std::string& model) {
  command.add_option("MODEL", model, "the model's name")->required()->check(model_check());
}

void add_version(CLI::App& command, const std::string& name, std::string& version, const std::string& description) {
  command.add_option(name, version, description)->required()->check(version_check());
}

namespace {

/// What is wrong with addresses to connect to; empty for nothing.
std::string problem_of(const std::vector<std::string_view>& addresses) {
  for (const std::string_view address : addresses) {
    const auto parsed = SocketAddress::parse(std::string(address), /*for_binding=*/false, Reach::any_host);
    if (!parsed) return parsed.error().message();
  }
  return {};
}

}  // namespace

CLI::Validator reachable_check(bool several) {
  const auto check = [several](const std::string& text) {
    if (text.empty()) return std::string("an address is missing");
    return problem_of(several ? split_list(text) : std::vector<std::string_view>{text});
  };
  return CLI::Validator([check](std::string& text) { return check(text); }, "", "addresses");
}

void add_address(CLI::App& command, std::string& address, AddressUse use, const std::string& description) {
  const auto is_address = [use](const std::string& text) {
    const auto parsed = SocketAddress::parse(text, use == AddressUse::bind, Reach::any_host);
    return parsed ? std::string() : parsed.error().message();
  };
  command.add_option(use == AddressUse::bind ? "--listen,--at" : "--at", address, description)
      ->type_name("ADDRESS")
      ->check(CLI::Validator([is_address](std::string& text) { return is_address(text); }, "", "address"));
}

std::string served_at(const std::string& address, const std::string& listen) {
  const auto parsed = SocketAddress::parse(listen, /*for_binding=*/true, Reach::any_host);
  const bool everywhere = parsed && parsed->is_tcp() && parsed->is_wildcard();
  return everywhere ? address + ", and at the same port of every interface" : address;
}

void add_addresses(CLI::App& command, std::string& addresses, const std::string& description) {
  const auto check = [](const std::string& text) {
    if (file::is_folder_address(text)) {
      const auto folder = file::folder_of_address(text);
      return folder ? std::string() : folder.error().message();
    }
    return problem_of(split_list(text));
  };
  command.add_option("--at", addresses, description)
      ->type_name("ADDRESS[,ADDRESS]")
      ->check(CLI::Validator([check](std::string& text) { return check(text); }, "", "addresses"));
}

void add_channel(CLI::App& command, std::optional<ChannelKind>& channel) {
  add_parsed(command, "--channel", channel, parse_channel,
             "the channel of bytes: auto (the best that both ends have; default), or one kind and no other")
      ->check(CLI::IsMember({"auto", "shm", "ucx", "nccl", "zmq", "file"}));
}

CLI::Option* add_offer(CLI::App& command, ChannelChoice& channels) {
  const CLI::Validator known(
      [](std::string& text) -> std::string {
        if (text == "auto" || text == "none") return {};
        for (const std::string_view one : split_list(text)) {
          if (one != "ucx" && one != "nccl" && one != "zmq") {
            return text + ": expected auto, none, or kinds of zmq,ucx,nccl";
          }
        }
        return {};
      },
      "KINDS");
  return add_parsed(command, "--offer", channels, parse_channel_choice,
                    "the channels for clients that fetch bytes from here over TCP: auto (default), none, or kinds with "
                    "commas: zmq,ucx,nccl")
      ->check(known);
}

void add_directory(CLI::App& command, std::string& directory) {
  command
      .add_option("--directory", directory,
                  "the directory in which publishers and subscribers find each other: a folder, or "
                  "redis://[:PASSWORD@]HOST[:PORT][/DB]; default: $FRESHET_DIRECTORY, else this host's folder")
      ->type_name("DIRECTORY");
}

void add_client_keys(CLI::App& command, SecurityOptions& security) {
  CLI::Option* const keys =
      command.add_option("--keys", security.key_file, "this side's keys, for a server's address")->type_name("FILE");
  command.add_option("--server-key", security.server_key, "the server's public key, or its NAME.pub")
      ->type_name("KEY")
      ->needs(keys);
  add_open_loopback(command, security);
}

void add_open_loopback(CLI::App& command, SecurityOptions& security) {
  command.add_flag("--open-loopback", security.open_loopback,
                   "without keys, also believe a loopback port where another user of this host listens");
}

void add_security(CLI::App& command, SecurityOptions& security, const std::string& address, AddressUse use) {
  CLI::Option* const keys = command.add_option("--keys", security.key_file, "this side's keys (freshet keygen)");
  keys->type_name("FILE");
  if (use == AddressUse::bind) {
    command
        .add_option("--allow", security.allow_file,
                    "the allow-list: public keys of admitted clients; read again when it changes")
        ->type_name("FILE")
        ->needs(keys);
    command
        .add_flag("--open-loopback", security.open_loopback,
                  "a loopback port without keys admits every user of this host, not only this user")
        ->excludes(keys);
  } else {
    command.add_option("--server-key", security.server_key, "the publisher's public key, or its NAME.pub")
        ->type_name("KEY")
        ->needs(keys);
    add_open_loopback(command, security);
  }
  command
      .add_flag("--trusted-fabric", security.trusted_fabric,
                "bulk data may go unencrypted beyond this host, over ucx or nccl: you trust everybody on that network")
      ->needs(keys);
  command.parse_complete_callback([&security, &address, use] {
    if (address.empty() || !security.key_file.empty() || file::is_folder_address(address)) return;
    for (const std::string_view one : split_list(address)) {
      const auto parsed = SocketAddress::parse(std::string(one), use == AddressUse::bind);
      if (!parsed) throw CLI::ValidationError(parsed.error().message());
    }
  });
}

VersionName version_of(const std::string& text) {
  Result<VersionName> name = parse_version_name(text);
  FRESHET_CHECK(name.has_value());
  return *name;
}

CLI::Validator model_check() {
  return CLI::Validator(
      [](std::string& text) {
        const Status checked = check_model_name(text);
        return checked ? std::string() : checked.error().message();
      },
      "", "model");
}

CLI::Validator version_check() {
  return CLI::Validator(
      [](std::string& text) {
        const Result<VersionName> name = parse_version_name(text);
        return name ? std::string() : name.error().message();
      },
      "", "version");
}

CLI::Validator seconds_check() {
  constexpr double kSecondsMax = 1e9;
  return CLI::Validator(
      [](std::string& text) {
        const std::optional<double> value = finite(text);
        return value && *value >= 0 && *value <= kSecondsMax ? std::string() : text + " is not a number of seconds";
      },
      "", "seconds");
}

CLI::Validator positive_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const auto value = number_in<std::int64_t>(text);
        if (!value || *value < 1) return "must be a whole number from 1";
        text = std::to_string(*value);  // CLI11 would take leading zeros for octal.
        return "";
      },
      "", "positive");
}

CLI::Validator number_check() {
  return CLI::Validator(
      [](std::string& text) { return finite(text) ? std::string() : text + " is not a finite number"; }, "", "number");
}

CLI::Validator tag_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        const std::size_t equals = text.find('=');
        if (equals == 0 || equals == std::string::npos) return shown(text) + " is not KEY=VALUE";
        const auto [key, value] = tag_of(text);
        if (const Status checked = check_label("the key", key, kTagKeyBytesMax); !checked) {
          return checked.error().message();
        }
        // A file's __metadata__ may hold anything; who types a tag means what can be shown.
        return has_controls(value, "\n\t") ? "the value of " + key + " holds control characters" : std::string();
      },
      "", "tag");
}

Duration seconds(double value) { return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value)); }

std::pair<std::string, std::string> tag_of(const std::string& text) {
  const std::size_t equals = text.find('=');
  return {text.substr(0, equals), text.substr(equals + 1)};
}

}  // namespace freshet::cli
