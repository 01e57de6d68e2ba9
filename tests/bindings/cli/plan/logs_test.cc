// SPDX-License-Identifier: Apache-2.0
// `freshet plan` on the logs of trainers, in the shapes that their libraries document.

#include <gmock/gmock.h>

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/base/format.h"
#include "tests/bindings/cli/support/program.h"
#include "tests/support/temporary_folder.h"

namespace freshet::cli_test {
namespace {

using testing::HasSubstr;

constexpr int kLogRows = 120;

/// Exact in decimal, so that every log has the same losses to the last bit.
double loss_at(int row) { return std::round((0.25 + 2 * std::pow(row, -0.5)) * 1024) / 1024; }

class PlanLogs : public testing::Test {
 protected:
  Ended plan(const std::string& name, const std::string& text, std::vector<std::string> more = {}) const {
    std::ofstream(folder_ / name) << text;
    std::vector<std::string> words = {"plan",         folder_ / name, "--warmup",      "40",    "--step-ms",  "10",
                                      "--stall-ms",   "12.5",         "--delivery-ms", "30",    "--infer-ms", "4.5",
                                      "--inferences", "300",          "--replay",      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  /// Rows that `row` writes.
  static std::string rows(const std::string& begin, const std::function<std::string(int)>& row,
                          const std::string& end = "") {
    std::string text = begin;
    for (int i = 1; i <= kLogRows; ++i) text += row(i);
    return text + end;
  }
  /// The costs of the same rows in the file that `plan` has always read; `steps_apart` as in the log.
  Json plain(int steps_apart, const std::function<std::string(int)>& eval_loss = nullptr) const {
    const std::string header = eval_loss ? "step,loss,eval_loss\n" : "step,loss\n";
    const Ended ended =
        plan("plain.csv", rows(header, [&](int i) {
               return format("{},{}{}\n", i * steps_apart, loss_at(i), eval_loss ? "," + eval_loss(i) : std::string());
             }));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    return ended.json()["policies"];
  }
  static void expect_note(const Ended& ended, const std::string& note) {
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(note));
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  /// Straight lines between the values at every tenth row, of a value that is one itself.
  static double held_out(int row) { return 2 - row / 128.0; }

  TemporaryFolder folder_;
};

TEST_F(PlanLogs, OfKeras) {
  const Ended ended = plan("training.log", rows("epoch,accuracy,loss,val_accuracy,val_loss\n", [](int i) {
                             // With validation_freq, Keras writes NA for what it did not measure.
                             const std::string measured = i % 10 == 0 || i == 1 ? format("{}", held_out(i)) : "NA";
                             return format("{},0.5,{},0.5,{}\n", i, loss_at(i), measured);
                           }));
  expect_note(ended,
              "step is epoch, loss is loss, eval_loss is val_loss (13 measured, the rest in between); 2 other "
              "columns are passed over; a row is an epoch");
  EXPECT_EQ(ended.json()["policies"], plain(1, [](int i) { return format("{}", held_out(i)); }));
}

TEST_F(PlanLogs, OfLightning) {
  // A row of training has no val_loss, one of validation no train_loss.
  const Ended ended = plan("metrics.csv", rows("epoch,step,train_loss,val_loss\n", [](int i) {
                             return format("0,{},{},\n", i * 50, loss_at(i)) +
                                    (i % 10 == 0 || i == 1 ? format("0,{},,{}\n", i * 50, held_out(i)) : "");
                           }));
  expect_note(ended,
              "step is step, loss is train_loss, eval_loss is val_loss (13 measured, the rest in between); 1 "
              "other columns are passed over; rows are 50 steps apart: --step-ms is the time of one row");
  EXPECT_EQ(ended.json()["policies"], plain(50, [](int i) { return format("{}", held_out(i)); }));
}

TEST_F(PlanLogs, OfHuggingFace) {
  const std::string text =
      rows(R"({"best_metric": null, "epoch": 3.0, "global_step": 1200, "log_history": [)",
           [](int i) {
             return format(R"({{"epoch": {}, "grad_norm": 1.5, "learning_rate": 5e-05, "loss": {}, )"
                           "\n\"step\": {}}},\n",
                           i / 40.0, loss_at(i), i * 10);
           },
           R"({"epoch": 3.0, "step": 1200, "total_flos": 1e15, "train_loss": 0.9, "train_runtime": 7.5}],
                                "is_world_process_zero": true})");
  const Ended ended = plan("trainer_state.json", text);
  expect_note(ended,
              "step is step, loss is loss; 6 other columns are passed over; 1 rows have no loss; rows are 10 steps "
              "apart");
  EXPECT_EQ(ended.json()["policies"], plain(10));
}

TEST_F(PlanLogs, OfWeightsAndBiases) {
  const auto record = [](int i) {
    return format(R"({{"_step":{},"_runtime":1.5,"_timestamp":1.7e9,"train/loss":{},"note":"NaN\"s"}})", i - 1,
                  loss_at(i)) +
           "\n";
  };
  const Ended lines = plan("history.jsonl", rows("", record));
  expect_note(lines, "step is _step, loss is train/loss; 2 other columns are passed over");
  const Ended chart =
      plan("chart.csv", rows("\"Step\",\"brisk-fox-7 - train/loss\",\"brisk-fox-7 - train/loss__MIN\",\"brisk-fox-7 - "
                             "train/loss__MAX\"\n",
                             [](int i) { return format("\"{0}\",\"{1}\",\"{1}\",\"{1}\"\n", i - 1, loss_at(i)); }));
  expect_note(chart, "step is Step, loss is brisk-fox-7 - train/loss; 2 other columns are passed over");
  const Ended history = plan("history.csv", rows(",_step,_runtime,loss,val_loss\n", [](int i) {
                               return format("{},{},1.5,{},\n", i - 1, i - 1, loss_at(i));
                             }));
  EXPECT_EQ(history.exit_code, 0) << history.err;
  const Json expected = plain(1)["online"]["cil"];
  for (const Ended* ended : {&lines, &chart, &history}) EXPECT_EQ(ended->json()["policies"]["online"]["cil"], expected);
}

TEST_F(PlanLogs, AColumnIsNamed) {
  const std::string text =
      rows("step,mse,train_loss,train/loss,epoch\n", [](int i) { return format("{},{},7,8,0\n", i, loss_at(i)); });
  const Ended ambiguous = plan("a.csv", text);
  EXPECT_EQ(ambiguous.exit_code, 1);
  EXPECT_THAT(ambiguous.err,
              HasSubstr("a.csv line 1: several columns could be the loss: train_loss, train/loss; name one with "
                        "--loss-column"));
  const Ended named = plan("a.csv", text, {"--loss-column", "mse"});
  expect_note(named, "step is step, loss is mse");
  EXPECT_EQ(named.json()["policies"], plain(1));
  const Ended missing = plan("a.csv", text, {"--loss-column", "mae"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(
      missing.err,
      HasSubstr("--loss-column mae: there is no such column; there are step, mse, train_loss, train/loss, epoch"));
  const Ended none = plan("b.csv", "step,mse,mae\n1,2,3\n");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_THAT(none.err, HasSubstr("the header has no column loss; it has step, mse, mae; name one with --loss-column"));
  const Ended held_out = plan("a.csv", text, {"--loss-column", "mse", "--eval-column", "train_loss"});
  expect_note(held_out, "eval_loss is train_loss (120 measured");
}

TEST_F(PlanLogs, APipeGivesItsBytesOnce) {
  const auto csv = [](int i) { return format("{},{}\n", i, loss_at(i)); };
  const auto json = [](int i) { return format("{{\"step\":{},\"loss\":{}}}\n", i, loss_at(i)); };
  const Json expected = plan("file.csv", rows("step,loss\n", csv)).json()["policies"];
  std::ofstream(folder_ / "file.jsonl") << rows("", json);
  for (const char* name : {"file.csv", "file.jsonl"}) {
    const std::string pipe = folder_ / (std::string(name) + ".pipe");
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    std::thread writer([&] { std::ofstream(pipe) << std::ifstream(folder_ / name).rdbuf(); });
    const Ended ended = run({"plan", pipe, "--warmup", "40", "--step-ms", "10", "--stall-ms", "12.5", "--delivery-ms",
                             "30", "--infer-ms", "4.5", "--inferences", "300", "--replay", "--json"});
    writer.join();
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_EQ(ended.json()["policies"], expected) << name;
  }
}

TEST_F(PlanLogs, ABackslashEndsNoText) {
  const auto row = [](int i) {
    return format(R"({{"path":"C:\\","step":{},"loss":{},"other":NaN}})", i, loss_at(i)) + "\n";
  };
  const Ended ended = plan("log.jsonl", rows("", row));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
}

TEST_F(PlanLogs, MoreColumnsThanAnyTrainerLogsAreRefused) {
  std::string text;
  for (int i = 1; i <= 5000; ++i) text += format("{{\"step\":{},\"loss\":1,\"k{}\":1}}\n", i, i);
  const Ended ended = plan("log.jsonl", text);
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_THAT(ended.err, HasSubstr("more than 4096 members are numbers"));
}

TEST_F(PlanLogs, BadLogsAreNamed) {
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {"{\"log_history\": 3}", "neither a trainer_state.json with its log_history nor a list of records"},
           {"{\"log_history\": [3]}", "record 1 is no object"},
           {"{\"log_history\": []}", "the header has no column step"},
           {"{\"step\":1,\"loss\":2}\n{\"step\":2,\n", "line 2: "},
           {"{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":NaN}\n", "record 2: loss NaN: not finite"},
           {"{\"step\":1,\"loss\":2,\"eval_loss\":2}\n{\"step\":2,\"eval_loss\":NaN}\n",
            "record 2: eval_loss NaN: not finite"},
           {"{\"step\":1.5,\"loss\":2}\n", "record 1: step 1.5: not a whole number"},
           {"[1, 2", "bad.json: "},
           {"epoch,step,train_loss\n0,1,\n", "no rows with a loss"},
           {"epoch,step,train_loss\n0,1,x\n", "line 2: train_loss x: not a number"},
       }) {
    const Ended ended = plan("bad.json", text);
    EXPECT_EQ(ended.exit_code, 1) << text << ended.out;
    EXPECT_THAT(ended.err, HasSubstr(said)) << text;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
}

}  // namespace
}  // namespace freshet::cli_test
