// SPDX-License-Identifier: Apache-2.0
#include "examples/live_run/model/corpus.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace freshet::live {
namespace {

class CorpusTest : public testing::Test {
 protected:
  CorpusTest() {
    char name[] = "/tmp/freshet-corpus-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~CorpusTest() override { std::filesystem::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& content) const {
    const std::string path = folder_ + "/" + name;
    std::ofstream(path, std::ios::binary) << content;
    return path;
  }
  std::string folder_;
};

std::string message_of(const Result<Corpus>& corpus) { return corpus ? "" : corpus.error().message(); }

TEST(Split, KeepsEveryByteOnce) {
  Text text;
  for (std::size_t i = 0; i < 100'000; ++i) text.push_back(static_cast<std::uint8_t>(i * 31 + i / 256));
  const Corpus corpus = split(text);
  EXPECT_EQ(corpus.training.size() + corpus.held_out.size(), text.size());
  EXPECT_NEAR(static_cast<double>(corpus.held_out.size()) / static_cast<double>(text.size()), 0.1, 0.02);
  EXPECT_TRUE(std::equal(corpus.held_out.begin(), corpus.held_out.begin() + 2048, text.begin() + 2048));
  EXPECT_TRUE(std::equal(corpus.training.begin() + 2048, corpus.training.begin() + 4096, text.begin() + 4096));
}

TEST_F(CorpusTest, ReadsSeveralFiles) {
  const auto corpus = read_corpus({file("a", std::string(5000, 'a')), file("b", std::string(5000, 'b'))});
  ASSERT_TRUE(corpus) << message_of(corpus);
  EXPECT_EQ(corpus->training.size() + corpus->held_out.size(), 10'000u);
  EXPECT_EQ(corpus->held_out.size(), 2 * 2048u);
}

TEST_F(CorpusTest, SaysWhichFileIsNoText) {
  const std::string good = file("good", std::string(5000, 'a'));
  const std::string gone = folder_ + "/gone";
  EXPECT_EQ(message_of(read_corpus({good, gone})), "text " + gone + ": no such file");
  EXPECT_EQ(message_of(read_corpus({folder_})), "text " + folder_ + ": is a folder, not a file");
  const std::string empty = file("empty", "");
  EXPECT_EQ(message_of(read_corpus({good, empty})), "text " + empty + ": is empty");
  const std::string binary = file("binary", std::string("ELF\0\1\2", 6) + std::string(5000, 'x'));
  EXPECT_EQ(message_of(read_corpus({binary})), "text " + binary + ": is binary, not text (a zero byte at 3)");
  std::string noise;
  for (int i = 0; i < 5000; ++i) noise += static_cast<char>(1 + i % 255);
  EXPECT_NE(message_of(read_corpus({file("noise", noise)})).find("is binary, not text ("), std::string::npos);
  EXPECT_NE(message_of(read_corpus({file("short", "only a few words")})).find("too little"), std::string::npos);
}

TEST_F(CorpusTest, TakesUtf8AndFormFeeds) {
  std::string text;
  while (text.size() < 6000) text += "Größe, naïve \xE2\x80\x94 page\f\r\n\tend\n";
  EXPECT_TRUE(read_corpus({file("utf8", text)}));
}

}  // namespace
}  // namespace freshet::live
