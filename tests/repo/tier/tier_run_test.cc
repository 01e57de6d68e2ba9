// SPDX-License-Identifier: Apache-2.0
// What `run` says while its command goes on, and where it finds its reader; sources that versions are written to.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "repo/tier/board_file.h"
#include "repo/tier/config.h"
#include "tests/repo/tier/support/lab.h"
#include "tests/support/child_process.h"

namespace freshet::test {
namespace {

TEST(TierRun, SaysWhileItsCommandGoesOnThatCopiesAreBroken) {
  const TierLab lab;
  const std::string file = lab.make("data", 5000);
  lab.fill();
  const std::string copy = lab.copies().at(0);
  // The copy is broken once the run's keeper counted it. The command ends when it is told to, and that is when
  // something was said.
  std::ofstream(lab.path("watch.py"))
      << "import os, select, subprocess, sys\n"
         "program, path, copy = sys.argv[1:]\n"
         "command = 'echo up; read line; head -c 1 \"$0\" > /dev/null; read line'\n"
         "run = subprocess.Popen([program, 'tier', 'run', '--', 'sh', '-c', command, path], stdin=subprocess.PIPE,\n"
         "                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)\n"
         "assert run.stdout.readline() == 'up\\n'\n"
         "subprocess.run([program, 'tier', 'settle'], check=True)\n"
         "os.unlink(copy)\n"
         "with open(copy, 'w') as half: half.write('half')\n"
         "run.stdin.write('\\n')\n"
         "run.stdin.flush()\n"
         "if select.select([run.stderr], [], [], 60)[0]: print(run.stderr.readline().strip(), flush=True)\n"
         "rest = run.communicate('\\n')[1]\n"
         "print(run.returncode, repr(rest))\n";
  const Ran ran = lab.run({"python3", lab.path("watch.py"), FRESHET_PROGRAM, file, copy});
  EXPECT_NE(ran.out.find("freshet tier: a copy was cut short, replaced or could not be opened"), std::string::npos)
      << ran.out << ran.err;
  EXPECT_TRUE(ran.out.ends_with("0 ''\n")) << ran.out << ran.err;
}

TEST(TierRun, WithoutItsReaderRunsTheCommandAndSaysSo) {
  const TierLab lab;
  const std::string file = lab.make("data", 5000);
  std::filesystem::create_directories(lab.path("alone/bin"));
  std::filesystem::copy_file(FRESHET_PROGRAM, lab.path("alone/bin/freshet"));
  const std::string run = "'" + lab.path("alone/bin/freshet") + "' tier run -- wc -c '" + file + "'; echo $?";
  const Ran alone = lab.plain(run);
  EXPECT_EQ(alone.out, "5000 " + file + "\n0\n");
  EXPECT_TRUE(alone.err.starts_with("freshet tier: the reader libfreshet_tier.so is not installed")) << alone.err;
  EXPECT_EQ(std::count(alone.err.begin(), alone.err.end(), '\n'), 1) << alone.err;
  // As a wheel has it: the program in a folder beside the package, or in the environment's bin.
  for (const char* place : {"alone/freshet", "alone/lib/python3.11/site-packages/freshet"}) {
    std::filesystem::create_directories(lab.path(place));
    const std::string reader = lab.path(place) + std::string("/libfreshet_tier.so");
    std::filesystem::copy_file(FRESHET_TIER_READER, reader);
    const Ran whole = lab.plain(run);
    EXPECT_EQ(whole.err, "") << place;
    EXPECT_EQ(lab.plain("'" + lab.path("alone/bin/freshet") + "' tier library").out, reader + "\n");
    std::filesystem::remove(reader);
  }
}

TEST(TierLibrary, WithAConfigWorksAfterTheHostsRestart) {
  const TierLab lab;
  const std::string file = lab.make("data", 5000);
  lab.fill();
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  // What a restart takes away.
  const auto config = tier::read_config(lab.config());
  ASSERT_TRUE(config);
  ASSERT_EQ(::unlink(tier::board_path(*config).c_str()), 0);
  const std::string served = "LD_PRELOAD=$('" FRESHET_PROGRAM "' tier library --config '" + lab.config() +
                             "') python3 -c 'import os; print(os.readlink(\"/proc/self/fd/%d\" % os.open(\"" + file +
                             "\", 0)))'";
  EXPECT_TRUE(lab.plain(served).out.starts_with(lab.tier())) << lab.plain(served).err;
}

TEST(TierSources, AreAlsoWhatVersionsAreWrittenTo) {
  const TierLab lab;
  const std::string repo = "'" FRESHET_PROGRAM "' repo --repo '" + lab.path("repo") + "' ";
  const auto write_version = [&](int number) {
    const std::string header = R"({"w":{"dtype":"U8","shape":[4096],"data_offsets":[0,4096]}})";
    std::ofstream out(lab.path("w.safetensors"), std::ios::binary);
    const std::uint64_t bytes = header.size();
    out.write(reinterpret_cast<const char*>(&bytes), sizeof bytes)
        << header << std::string(4096, static_cast<char>('0' + number));
    out.close();
    const std::string name = "net@" + std::to_string(number) + ".safetensors";
    const Ran put =
        lab.plain(repo + "put net --weights '" + lab.path("w.safetensors") + "' && " + repo + "get net@" +
                  std::to_string(number) + " -o '" + lab.source(name) + "' && ln -s " + name + " '" +
                  lab.source(".new") + "' && mv -T '" + lab.source(".new") + "' '" + lab.source("latest") + "'");
    ASSERT_EQ(put.code, 0) << put.err;
  };
  const std::string read = "tail -c 1 '" + lab.source("latest") + "'";
  for (int number = 1; number <= 3; ++number) {
    write_version(number);
    EXPECT_EQ(lab.served(read).out, std::to_string(number));
    ASSERT_EQ(lab.tier_command({"settle"}).code, 0);
    EXPECT_EQ(lab.served(read).out, std::to_string(number));
  }
  EXPECT_EQ(lab.total()["hits"], 3);
  EXPECT_EQ(lab.copies().size(), 3U);
}

/// A version's file: 4,096 times the digit of its number.
std::string weights_of(int number) {
  const std::string header = R"({"w":{"dtype":"U8","shape":[4096],"data_offsets":[0,4096]}})";
  std::uint64_t bytes = header.size();
  std::string text(reinterpret_cast<const char*>(&bytes), sizeof bytes);
  return text + header + std::string(4096, static_cast<char>('0' + number));
}

/// A server that opens what `latest` names again and again. It says each version that it saw, and where from; it ends
/// with version 4 from the tier.
constexpr const char* kServer = R"(import glob, os, sys
folder, tier, layout = sys.argv[1:]
seen, said = 0, set()
while (4, 'tier') not in said:
    try:
        weights = folder + '/latest'
        promised = int(os.readlink(weights)[len('net@'):].split('.')[0]) if layout == 'files' else 0
        if layout == 'weight_v':
            with open(weights) as pointer: weights, = glob.glob(folder + '/' + pointer.read().strip() + '/*.safetensors')
        with open(weights, 'rb') as file:
            place = 'tier' if os.readlink('/proc/self/fd/%d' % file.fileno()).startswith(tier) else 'source'
            text = file.read()
    except FileNotFoundError:
        assert seen == 0
        continue
    number = int(text[-1:])
    if text[-4096:] != text[-1:] * 4096: print('torn', flush=True)
    if number < max(seen, promised): print('old', flush=True)
    seen = number
    if (number, place) not in said: print(number, place, flush=True)
    said.add((number, place))
)";

void serve_what_subscribe_writes(const std::string& config, const std::vector<std::string>& layout) {
  SCOPED_TRACE(config + (layout.empty() ? "" : ", " + layout[1]));
  const TierLab lab(config);
  const std::string in = lab.path("in");
  std::filesystem::create_directory(in);
  const auto started = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {"/usr/bin/env", "FRESHET_TIER=" + lab.config(), "FRESHET_RUN_DIR=" + lab.path("run"),
                                 FRESHET_PROGRAM});
    return std::make_unique<ChildProcess>(std::move(words));
  };
  std::ofstream(lab.path("serve.py")) << kServer;
  const auto publisher = started({"publish", "net", "--watch", in});
  std::vector<std::string> follow = {"subscribe", "net", "--every", "--keep", "2", "--out", lab.source()};
  follow.insert(follow.end(), layout.begin(), layout.end());
  const auto subscriber = started(std::move(follow));
  const auto server = started({"tier", "run", "--", "python3", lab.path("serve.py"), lab.source(), lab.tier(),
                               layout.empty() ? "files" : layout[1]});
  for (int number = 1; number <= 4; ++number) {
    const std::string name = in + "/step" + std::to_string(number) + ".safetensors";
    std::ofstream(name + ".tmp", std::ios::binary) << weights_of(number);
    std::filesystem::rename(name + ".tmp", name);
    // Nobody asked for a copy before the first open, which therefore is the source's.
    ASSERT_EQ(server->line(), std::to_string(number) + " source");
    ASSERT_EQ(server->line(), std::to_string(number) + " tier");
  }
  EXPECT_EQ(server->line(), std::nullopt);
  EXPECT_EQ(server->wait(), 0);
  EXPECT_EQ(lab.total()["fallbacks"], 0);
}

TEST(TierSources, AreAlsoWhatSubscribeWrites) {
  for (const char* config : {"", "validate = \"never\""}) {
    serve_what_subscribe_writes(config, {});
  }
  serve_what_subscribe_writes("", {"--layout", "weight_v", "--full-every", "1"});
}

}  // namespace
}  // namespace freshet::test
