// SPDX-License-Identifier: Apache-2.0
// validate = "never": what has a copy is opened without a look at the source.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/repo/tier/support/lab.h"

namespace freshet::test {
namespace {

// Opens are made while the source is not where it was: whoever looks there finds nothing.
std::string away(const TierLab& lab, const std::string& command) {
  const std::string source = lab.source();
  return "mv '" + source + "' '" + source + ".away' && mkdir '" + source + "'; " + command + "; rmdir '" + source +
         "' && mv '" + source + ".away' '" + source + "'";
}

TEST(UnlookedSource, IsNotNeededForWhatHasACopy) {
  const TierLab lab("validate = \"never\"");
  const std::string file = lab.make("folder/a name\nof \xff two lines", 100'000);
  const std::string expected = lab.plain("sha256sum < '" + file + "'").out;
  lab.fill();
  ASSERT_EQ(lab.copies().size(), 1U);
  const std::string folder = lab.source();
  std::ofstream(lab.path("look.py"))
      << "import hashlib, os, sys\n"
         "path = sys.argv[1].encode('utf-8', 'surrogateescape')\n"
         "folder, name = os.path.split(path)\n"
         "here = os.getcwdb()\n"
         "def look(spelled):\n"
         "    with open(spelled, 'rb') as file:\n"
         "        info = os.fstat(file.fileno())\n"
         "        print(hashlib.sha256(file.read()).hexdigest(), *info[:7], info.st_mtime_ns, info.st_ctime_ns)\n"
         "for spelled in (path, folder + b'//./' + name, os.path.relpath(path, here)):\n"
         "    if b'..' not in spelled: look(spelled)\n";
  const std::string look = "cd '" + lab.path("") + "' && python3 look.py '" + file + "'";
  const std::string seen = lab.plain(look).out;
  EXPECT_EQ(std::count(seen.begin(), seen.end(), '\n'), 3);
  EXPECT_EQ(lab.served(away(lab, look)).out, seen);
  EXPECT_EQ(lab.total()["misses"], 0);
  EXPECT_EQ(lab.total()["hits"], 3);
  // Where opens are looked up, the file is gone.
  const TierLab other;
  (void)other.make("data", 100'000);
  other.fill();
  EXPECT_EQ(other.served(away(other, "cat '" + other.source("data") + "' | wc -c")).out, "0\n");
}

TEST(UnlookedSource, IsLookedAtForWhatASpellingDoesNotTell) {
  const TierLab lab("validate = \"never\"");
  const std::string file = lab.make("folder/data", 5000);
  std::filesystem::create_symlink(lab.source("folder"), lab.source("link"));
  lab.fill();
  const std::string ways = "cat '" + lab.source("link/data") + "' '" + lab.source("folder/../folder/data") +
                           "' | sha256sum; cat '" + file + "/' 2>&1 | grep -c 'Not a directory'; cat '" +
                           lab.source("folder/absent") + "' 2>&1 | grep -c 'No such file'; cat '" +
                           lab.source("folder") + "' 2>&1 | grep -c 'Is a directory'";
  EXPECT_EQ(lab.served(ways).out, lab.plain(ways).out);
  EXPECT_EQ(lab.total()["hits"], 2);
}

TEST(UnlookedSource, IsWhatTheCopyIsOfAndNoOtherPath) {
  const TierLab lab("validate = \"never\"");
  const std::string one = lab.make("one", 5000, 1);
  const std::string two = lab.make("two", 5000, 2);
  lab.fill();
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  // As if both paths had one hash: the link of "two" leads to the copy of "one".
  std::vector<std::filesystem::path> links;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(lab.tier() + "/.freshet-paths")) {
    if (entry.is_symlink()) links.push_back(entry.path());
  }
  ASSERT_EQ(links.size(), 2U);
  const auto first = std::filesystem::read_symlink(links[0]);
  const auto second = std::filesystem::read_symlink(links[1]);
  for (const auto& [link, text] : {std::pair(links[0], second), std::pair(links[1], first)}) {
    std::filesystem::remove(link);
    std::filesystem::create_symlink(text, link);
  }
  const std::string read = "sha256sum '" + one + "' '" + two + "'";
  const std::string preload = "LD_PRELOAD=" FRESHET_TIER_READER " ";
  EXPECT_EQ(lab.plain(preload + read).out, lab.plain(read).out);
  EXPECT_EQ(lab.total()["hits"], 2);
  // Hostile texts of links are no identities.
  for (const char* text :
       {"", "1-2-3-4-5-6", "1-2-3-4-5-6-7-8", "xx-2-3-4-5-6-7", "ff-2-3-4-5-6-7",
        "00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000"}) {
    for (const auto& link : links) {
      std::filesystem::remove(link);
      if (*text == '\0') {
        std::filesystem::create_directory(link);
      } else {
        std::filesystem::create_symlink(text, link);
      }
    }
    EXPECT_EQ(lab.plain(preload + read).out, lab.plain(read).out) << text;
    for (const auto& link : links) std::filesystem::remove(link);
  }
}

TEST(UnlookedSource, GetsTheLinksThatItsTiersLack) {
  const TierLab lab("validate = \"never\"", 2);
  const std::string file = lab.make("data", 5000);
  lab.fill();
  std::filesystem::remove_all(lab.tier() + "/.freshet-paths");
  // One that leads nowhere goes.
  std::filesystem::create_directories(lab.tier() + "/.freshet-paths/00");
  const std::string stray = lab.tier() + "/.freshet-paths/00/00000000000000";
  std::filesystem::create_symlink("0-1-2-3-4-5-6", stray);
  ASSERT_EQ(lab.tier_command({"stop"}).code, 0);
  EXPECT_EQ(lab.served(away(lab, "cat '" + file + "' | wc -c")).out, "5000\n");
  EXPECT_FALSE(std::filesystem::is_symlink(stray));
  // A copy that is dropped takes its link along.
  ASSERT_EQ(lab.tier_command({"drop"}).code, 0);
  for (const auto& entry : std::filesystem::recursive_directory_iterator(lab.tier() + "/.freshet-paths")) {
    EXPECT_FALSE(entry.is_symlink()) << entry.path();
  }
  EXPECT_EQ(lab.served("cat '" + file + "' | wc -c").out, "5000\n");
}

}  // namespace
}  // namespace freshet::test
