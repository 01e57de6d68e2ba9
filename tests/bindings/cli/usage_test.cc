// SPDX-License-Identifier: Apache-2.0
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "core/gpu/device.h"
#include "tests/bindings/cli/support/model_bytes.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

TEST(Usage, WrongLinesSayWhatIsWrongAndExitWithTwo) {
  const std::vector<std::vector<std::string>> lines = {
      {},
      {"nonsense"},
      {"doctor", "--nonsense"},
      {"repo"},
      {"repo", "ls"},  // No repository named.
      {"repo", "--repo", "x", "show"},
      {"repo", "--repo", "x", "show", "bad name"},
      {"repo", "--repo", "x", "show", "net@0"},
      {"repo", "--repo", "x", "show", "net@-x"},
      {"repo", "--repo", "x", "get", "net"},  // No -o.
      {"repo", "--repo", "x", "put", "net"},  // Neither graph nor weights.
      {"repo", "--repo", "x", "put"},
      {"repo", "--repo", "x", "put", "net", "--batch", "f", "--weights", "g"},
      {"repo", "--repo", "x", "put", "--batch", "f", "--quality", "0.5"},
      {"replay", "run", "--repo", "x", "--listen", "tcp://*:7070"},    // No keys.
      {"subscribe", "net", "--out", "x", "--allow", "f"},              // No --relay.
      {"subscribe", "net", "--out", "x", "--listen", "tcp://*:7070"},  // No --relay.
      {"repo", "--repo", "x", "put", "net", "--weights", "f", "--quality", "nan"},
      {"repo", "--repo", "x", "put", "net", "--weights", "f", "--tag", "novalue"},
      {"completion", "tcsh"},
      {"triton"},
      {"triton", "new"},
      {"triton", "serve", "models", "--nonsense"},
      {"provider", "--repo", "x", "--join", ""},
      {"provider", "--repo", "x", "--join", "nonsense"},
      {"provider", "--repo", "x", "--reached-at", "tcp://*:7080", "--join", "tcp://127.0.0.1:7081"},
      {"provider", "--repo", "x", "--reached-at", "tcp://127.0.0.1:7080"},  // Nobody is told.
  };
  for (const auto& line : lines) {
    const Ended ended = run(line);
    const std::string shown = testing::PrintToString(line);
    EXPECT_EQ(ended.exit_code, 2) << shown << ended.err;
    EXPECT_EQ(ended.out, "") << shown;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << shown << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("--help")) << shown;
  }
}

TEST(Usage, AWordThatIsNoCommandIsNamed) {
  EXPECT_THAT(run({"rollbak", "net@1"}).err, HasSubstr("freshet has no command \"rollbak\""));
  EXPECT_THAT(run({"repo", "--repo", "x", "lst"}).err, HasSubstr("repo has no command \"lst\""));
  EXPECT_THAT(run({"repo", "--repo", "x"}).err, testing::Not(HasSubstr("has no command")));
  EXPECT_THAT(run({"--nonsense"}).err, testing::Not(HasSubstr("has no command")));
}

TEST(Usage, TritonHandsItsLineToPythonAndNamesAPythonThatItCannotStart) {
  const Ended absent = run({"triton", "serve", "models"}, {{"FRESHET_PYTHON", "/absent/python3"}});
  EXPECT_EQ(absent.exit_code, 3);
  EXPECT_THAT(absent.err, HasSubstr("/absent/python3"));
  EXPECT_THAT(absent.err, HasSubstr("FRESHET_PYTHON"));
  TemporaryFolder folder;
  write_file(folder / "python3", "#!/bin/sh\nshift 2\nprintf '%s\\n' \"$@\"\n");
  std::filesystem::permissions(folder / "python3", std::filesystem::perms::owner_all);
  const Ended handed = run(
      {"triton", "--json", "new", "models/m", "--input", "x:FP32:-1,64", "--input=z:BOOL:2", "--output", "y:FP32:1"},
      {{"FRESHET_PYTHON", folder / "python3"}});
  EXPECT_EQ(handed.out, "new\nmodels/m\n--input=x:FP32:-1,64\n--input=z:BOOL:2\n--output=y:FP32:1\n--json\n");
  const Ended served = run({"triton", "serve", "models", "--http-port", "0", "--", "--model-control-mode=poll"},
                           {{"FRESHET_PYTHON", folder / "python3"}});
  EXPECT_EQ(served.out, "serve\nmodels\n--http-port=0\n--\n--model-control-mode=poll\n");
}

TEST(Usage, HelpAndVersionAreNoErrors) {
  for (const auto& line : std::vector<std::vector<std::string>>{
           {"--help"}, {"repo", "--help"}, {"repo", "put", "--help"}, {"doctor", "--help"}}) {
    const Ended ended = run(line);
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_THAT(ended.out, HasSubstr("Usage"));
    EXPECT_EQ(ended.err, "");
  }
  EXPECT_THAT(run({"--version"}).out, testing::MatchesRegex("freshet [0-9.]+\n"));
}

TEST(Doctor, HasALineForEveryCheck) {
  TemporaryFolder folder;
  const Ended ended = run({"doctor", "--json"}, {{"FRESHET_RUN_DIR", folder / "run"}});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  std::vector<std::string> checks;
  for (const Json& line : ended.json_lines()) {
    ASSERT_TRUE(line.is_object());
    checks.push_back(line["check"]);
    EXPECT_THAT(line["state"], testing::AnyOf("ok", "limited", "missing", "not built"));
    EXPECT_NE(line["found"], "");
    EXPECT_NE(line["enables"], "");
    EXPECT_TRUE(line.contains("get"));
  }
  EXPECT_THAT(checks, testing::ElementsAre("vector_code", "memory_lock", "huge_pages", "shared_memory",
                                           "host_directory", "directory", "tier_reader", "tier_kernel", "tiers", "ucx",
                                           "cuda", "nccl", "redis", "ceph", "s3"));
}

TEST(Doctor, FitsAHundredColumnsAndSaysWhatIsNotBuilt) {
  TemporaryFolder folder;
  const Environment environment = {{"FRESHET_RUN_DIR", folder / "a-long-name-of-a-folder-that-is-not-there/run"}};
  const std::string text = run({"doctor"}, environment).out;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // A word, like the path of a folder, is not cut.
    const bool is_word = line.find_first_of(' ', line.find_first_not_of(' ')) == line.npos;
    EXPECT_TRUE(is_word || line.size() <= 100) << line;
  }
  for (const Json& line : run({"doctor", "--json"}, environment).json_lines()) {
    const std::string check = line["check"];
    EXPECT_THAT(text, testing::ContainsRegex("(^|\n)" + check + " +" + line["state"].get<std::string>() + " "));
    if (line["state"] != "not built") continue;
    EXPECT_EQ(line["found"], "this program was built without it");
    EXPECT_THAT(line["get"].get<std::string>(), HasSubstr("build Freshet again"));
  }
}

TEST(Doctor, SaysWhichDevicesAreThereOrWhyThereIsNone) {
  TemporaryFolder folder;
  const Ended ended = run({"doctor", "--json"}, {{"FRESHET_RUN_DIR", folder / "run"}});
  const auto platform = gpu::open_driver_platform();
  for (const Json& line : ended.json_lines()) {
    if (line["check"] != "cuda") continue;
    if (!platform) {
      EXPECT_EQ(line["state"], "missing");
      EXPECT_EQ(line["found"], platform.error().message());
      EXPECT_THAT(std::string(line["found"]), HasSubstr("open the NVIDIA driver: "));
      return;
    }
    EXPECT_EQ(line["state"], "ok");
    EXPECT_THAT(std::string(line["found"]), HasSubstr("driver "));
    const auto devices = (*platform)->devices();
    ASSERT_TRUE(devices) << devices.error().message();
    for (const auto& info : *devices) EXPECT_THAT(std::string(line["found"]), HasSubstr(info.uuid.text()));
    return;
  }
  FAIL() << "no line about cuda";
}

TEST(Completion, ScriptsKnowEveryCommand) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Ended ended = run({"completion", shell});
    EXPECT_EQ(ended.exit_code, 0);
    for (const char* word : {"doctor", "lineage", "repo", "ancestor", "triton", "http-port"})
      EXPECT_THAT(ended.out, HasSubstr(word)) << shell;
  }
}

TEST(Completion, BashCompletesWhatTheLineGotTo) {
  TemporaryFolder folder;
  write_file(folder / "freshet", run({"completion", "bash"}).out);
  Environment environment = {{"FRESHET_RUN_DIR", folder / "run"},
                             {"XDG_STATE_HOME", folder / "state"},
                             {"FRESHET_REPO", folder / "repository"},
                             {"FRESHET_COMPLETION_MS", "60000"}};
  const auto completed = [&](const std::string& typed) {
    const std::string script = "source '" + (folder / "freshet") + "'; COMP_LINE='" + typed +
                               "'; COMP_POINT=${#COMP_LINE}; COMP_WORDBREAKS=' @:='; _freshet; " +
                               "echo \"${COMPREPLY[*]}\" > '" + (folder / "reply") + "'";
    write_file(folder / "script", script);
    EXPECT_EQ(run_in_shell("PATH=\"${FRESHET%/*}:$PATH\" bash '" + (folder / "script") + "'", environment), 0);
    return read_file(folder / "reply").value_or("");
  };
  EXPECT_EQ(completed("freshet rep"), "replay repo report\n");
  EXPECT_EQ(completed("freshet repo"), "repo report\n");
  EXPECT_EQ(completed("freshet repo --json li"), "lineage\n");
  EXPECT_EQ(completed("freshet repo put --an"), "--ancestor\n");
  // Values: words, stored models and versions, published ones.
  EXPECT_EQ(completed("freshet completion "), "bash zsh fish\n");
  EXPECT_EQ(completed("freshet subscribe net --channel s"), "shm\n");
  EXPECT_EQ(completed("freshet repo --repo /absent --json ls n"), "\n");
  for (const char* name : {"net", "other"}) {
    write_file(folder / "m.safetensors", encoded(chain(1, 2, 3)));
    const Ended put = run({"repo", "put", name, "--weights", folder / "m.safetensors"}, environment);
    ASSERT_EQ(put.exit_code, 0) << put.err;
  }
  EXPECT_EQ(completed("freshet repo ls n"), "net\n");
  EXPECT_EQ(completed("freshet repo show oth"), "other other@1\n");
  EXPECT_EQ(completed("freshet repo show net@"), "@1\n");
  EXPECT_EQ(completed("freshet repo --repo " + (folder / "none") + " show n"), "\n");
  Running publisher({"publish", "live", folder / "m.safetensors", "--json"}, environment);
  ASSERT_EQ(publisher.next_json()["version"], 1);
  EXPECT_EQ(completed("freshet top l"), "live\n");
  EXPECT_EQ(completed("freshet rollback live@"), "@1\n");
  // A path is the shell's to complete.
  EXPECT_EQ(completed("freshet publish live m"), "\n");
  // Nobody waits for a publisher that does not answer.
  publisher.signal(SIGSTOP);
  environment["FRESHET_COMPLETION_MS"] = "50";
  EXPECT_EQ(completed("freshet rollback live@"), "\n");
  publisher.signal(SIGCONT);
  // No word is run, whatever a host far away answered.
  write_file(folder / "evil", "#!/bin/sh\necho 'x$(touch " + (folder / "was-run") + ") * y'\n");
  std::filesystem::permissions(folder / "evil", std::filesystem::perms::owner_all);
  EXPECT_EQ(completed((folder / "evil") + " repo ls x"), "x$(touch\n");
  EXPECT_FALSE(std::filesystem::exists(folder / "was-run"));
}

TEST(Completion, NobodyWaitsForAPlaceThatDoesNotAnswer) {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(::bind(listener, name, length), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  ASSERT_EQ(::getsockname(listener, name, &length), 0);
  // A command that waited to the end would say that the place is away, with another exit code.
  const Ended ended =
      run({"complete", "stored", "--repo", "tcp://127.0.0.1:" + std::to_string(ntohs(address.sin_port))});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.out + ended.err, "");
  ::close(listener);
}

TEST(Stdout, AReaderThatLeavesIsNoError) {
  Running program({"doctor", "--json"}, {});
  program.close_stdout();
  const Ended ended = program.wait();
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.err, "");
}

TEST(Usage, AProviderOfABucketSaysWhereItListens) {
  const Ended silent = run({"provider", "--repo", "s3://bucket/net"});
  EXPECT_EQ(silent.exit_code, 1) << silent.err;
  EXPECT_NE(silent.err.find("give --listen"), std::string::npos) << silent.err;
  const Ended joining =
      run({"provider", "--repo", "s3://bucket/net", "--listen", "tcp://127.0.0.1:*", "--join", "tcp://127.0.0.1:7"});
  EXPECT_EQ(joining.exit_code, 1) << joining.err;
  EXPECT_NE(joining.err.find("one owner"), std::string::npos) << joining.err;
}

}  // namespace
}  // namespace freshet::cli_test
