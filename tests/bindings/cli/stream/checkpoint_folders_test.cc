// SPDX-License-Identifier: Apache-2.0
// Folders checkpoint-N, as Hugging Face's Trainer writes them: watched, published by name, imported.

#include <gmock/gmock.h>

#include "core/base/format.h"
#include "tests/bindings/cli/support/streaming.h"

namespace freshet::cli_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

class CheckpointFolders : public Streaming {
 protected:
  void SetUp() override { fs::create_directory(folder_ / "out"); }

  std::string path(int step, const std::string& file = "") const {
    return folder_ / ("out/checkpoint-" + std::to_string(step) + (file.empty() ? "" : "/" + file));
  }
  /// In the order in which the Trainer writes the files.
  void write_checkpoint(int step, char number) const {
    fs::create_directories(path(step));
    ModelBytes model = chain(1, 2, number);
    model.metadata = {{"format", "pt"}};
    write_file(path(step, "model.safetensors"), encoded(model));
    write_file(path(step, "optimizer.pt"), "state");
    const std::string history = format(
        R"({{"log_history": [{{"loss": 9.5, "step": 1}}, {{"loss": 0.25, "step": {0}}}, {{"eval_loss": 0.5, "step": {0}}}]}})",
        step);
    write_file(path(step, "trainer_state.json"), history);
  }
  /// The same model in two parts.
  void write_parts(int step, char number) const {
    fs::create_directories(path(step));
    ModelBytes first = chain(1, 2, number);
    ModelBytes second = first;
    first.tensors.resize(1);
    second.tensors.erase(second.tensors.begin());
    write_file(path(step, "model-00001-of-00002.safetensors"), encoded(first));
    write_file(path(step, "model-00002-of-00002.safetensors"), encoded(second));
    Json map = {{"a.w", "model-00001-of-00002.safetensors"},
                {"b.w", "model-00002-of-00002.safetensors"},
                {"c.w", "model-00002-of-00002.safetensors"}};
    write_file(path(step, "model.safetensors.index.json"),
               Json{{"metadata", {{"total_size", 48}}}, {"weight_map", map}}.dump());
  }
  std::vector<Json> versions_of(const std::string& model) const {
    const Json stat = run_to_end({"top", model, "--once"}).json();
    return stat["versions"].get<std::vector<Json>>();
  }
};

TEST_F(CheckpointFolders, ComeInTheOrderOfTheirStepsWithTheirLosses) {
  write_checkpoint(1000, 3);
  write_parts(900, 2);
  write_checkpoint(80, 1);
  Running publisher = start({"publish", "net", "--watch", folder_ / "out", "--settle", "0.05"});
  std::vector<std::string> files;
  for (int i = 0; i < 3; ++i) files.push_back(publisher.next_json()["file"]);
  EXPECT_THAT(files, ElementsAre(path(80, "model.safetensors"), path(900, "model.safetensors.index.json"),
                                 path(1000, "model.safetensors")));
  const std::vector<Json> versions = versions_of("net");
  ASSERT_EQ(versions.size(), 3u);
  EXPECT_EQ(versions[0]["step"], 80);
  EXPECT_EQ(versions[0]["metrics"], (Json{{"loss", 0.25}, {"eval_loss", 0.5}}));
  EXPECT_EQ(versions[1]["step"], 900);
  EXPECT_EQ(versions[1]["metrics"], Json::object());
  EXPECT_EQ(versions[2]["step"], 1000);
  EXPECT_EQ(versions[2]["file"], path(1000, "model.safetensors"));
  // What comes beside the weights makes no version; the next checkpoint does, which was renamed into place.
  write_file(path(1000, "eval.json"), "{}");
  write_checkpoint(1100, 4);
  ASSERT_EQ(publisher.next_json()["file"], path(1100, "model.safetensors"));
  fs::rename(path(80), folder_ / "out/tmp-checkpoint-1200");
  fs::rename(folder_ / "out/tmp-checkpoint-1200", path(1200));
  ASSERT_EQ(publisher.next_json()["file"], path(1200, "model.safetensors"));
  EXPECT_EQ(versions_of("net").size(), 5u);
}

TEST_F(CheckpointFolders, WithoutWeightsOrALinkGetOneAnswer) {
  fs::create_directories(path(5));
  write_file(path(5, "pytorch_model.bin"), "pickle");
  write_checkpoint(6, 1);
  fs::create_directory_symlink(path(6), path(7));
  Running publisher = start({"publish", "net", "--watch", folder_ / "out", "--settle", "0.05"});
  EXPECT_EQ(publisher.next_json()["file"], path(6, "model.safetensors"));
  const std::string none = publisher.next_error_line().value_or("") + publisher.next_error_line().value_or("");
  EXPECT_THAT(none, HasSubstr(path(5) + ": not taken: the folder has no weights: no model.safetensors and no "
                                        "model.safetensors.index.json; it has pytorch_model.bin: save with"));
  const std::string link = publisher.next_error_line().value_or("");
  EXPECT_THAT(none + link,
              HasSubstr(path(7) + ": not taken: it is a symbolic link to a folder; name the folder itself"));
  // Said once; and the weights that come later are taken.
  write_checkpoint(5, 2);
  EXPECT_EQ(publisher.next_json()["file"], path(5, "model.safetensors"));
  publisher.signal(SIGTERM);
  EXPECT_THAT(publisher.wait().err, testing::Not(HasSubstr("not taken")));
}

TEST_F(CheckpointFolders, ThatStayIncompleteDoNotProlongTheLinger) {
  write_checkpoint(80, 1);
  for (const int step : {900, 950}) {
    write_parts(step, 2);
    fs::remove(path(step, "model-00002-of-00002.safetensors"));
  }
  const Ended ended = run_to_end({"publish", "net", "--watch", folder_ / "out", "--settle", "0.02", "--linger", "0.4"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["file"], path(80, "model.safetensors"));
  // Each complaint is made once, and once more at the end, whichever was made last.
  const auto times = [&](const std::string& text) {
    std::size_t count = 0;
    for (auto at = ended.err.find(text); at != std::string::npos; at = ended.err.find(text, at + 1)) ++count;
    return count;
  };
  for (const int step : {900, 950}) {
    EXPECT_EQ(times(path(step, "model-00002-of-00002.safetensors")), 1u) << ended.err;
    EXPECT_EQ(times(path(step) + " stayed incomplete"), 1u) << ended.err;
  }
}

TEST_F(CheckpointFolders, AreFilesOfTheCommandLineToo) {
  write_checkpoint(30, 1);
  fs::create_directories(path(40));
  EXPECT_EQ(run_to_end({"publish", "net", path(30), "--linger", "0"}).json()["file"], path(30, "model.safetensors"));
  const Ended none = run_to_end({"publish", "net", path(40), "--linger", "0"});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("the folder has no weights"));
}

TEST_F(CheckpointFolders, AreImportedInTheOrderOfTheirSteps) {
  write_checkpoint(1000, 3);
  write_parts(900, 2);
  write_checkpoint(80, 1);
  Environment with_repository = environment();
  with_repository["FRESHET_REPO"] = folder_ / "repository";
  const Ended imported = run({"repo", "import", "--model", "net", folder_ / "out", "--json"}, with_repository);
  ASSERT_EQ(imported.exit_code, 0) << imported.err;
  std::vector<std::uint64_t> steps;
  for (const Json& line : run({"repo", "ls", "net", "--json"}, with_repository).json_lines())
    steps.push_back(line["step"]);
  EXPECT_THAT(steps, ElementsAre(80, 900, 1000));
  EXPECT_EQ(run({"repo", "show", "net@1", "--json"}, with_repository).json()["metrics"],
            (Json{{"loss", 0.25}, {"eval_loss", 0.5}}));
  fs::create_directories(path(5));
  const Ended none = run({"repo", "import", "--model", "net", folder_ / "out", "--json"}, with_repository);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("checkpoint-5: not taken: the folder has no weights"));
  EXPECT_EQ(none.out, "");
}

}  // namespace
}  // namespace freshet::cli_test
