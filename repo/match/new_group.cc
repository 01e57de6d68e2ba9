// SPDX-License-Identifier: Apache-2.0
/// A new architecture in the index: which of its slots it shares with others, and what that changes for them.

#include <algorithm>
#include <memory>
#include <unordered_map>

#include "core/base/check.h"
#include "repo/match/writer.h"

namespace freshet::detail {
namespace {

/// Who reads a vertex, of a graph that knows who it reads.
class Readers {
 public:
  explicit Readers(const PackedGraph& graph) : starts_(graph.slots().size() + 1) {
    const auto vertices = static_cast<std::uint32_t>(graph.slots().size());
    for (std::uint32_t vertex = 0; vertex < vertices; ++vertex) {
      for (const std::uint32_t input : graph.inputs_of(vertex)) ++starts_[input + 1];
    }
    for (std::uint32_t vertex = 0; vertex < vertices; ++vertex) starts_[vertex + 1] += starts_[vertex];
    readers_.resize(starts_.back());
    std::vector<std::uint32_t> end(starts_.begin(), starts_.end() - 1);
    for (std::uint32_t vertex = 0; vertex < vertices; ++vertex) {
      for (const std::uint32_t input : graph.inputs_of(vertex)) readers_[end[input]++] = vertex;
    }
  }

  /// Ascending. One that reads it twice comes twice.
  std::span<const std::uint32_t> of(std::uint32_t vertex) const {
    return std::span(readers_).subspan(starts_[vertex], starts_[vertex + 1] - starts_[vertex]);
  }

 private:
  std::vector<std::uint32_t> starts_;
  std::vector<std::uint32_t> readers_;
};

/// Another group that has private slots of which the new one has some: which of its slots come to stand at the border
/// when one of them becomes shared.
class PrivateGroup {
 public:
  PrivateGroup(const Shelf& shelf, const PackedGraph& graph)
      : graph_(graph), readers_(graph), private_inputs_(graph.slots().size()) {
    enum class Known : std::uint8_t { no, is_shared, is_private };
    std::vector<Known> known(graph.slots().size(), Known::no);
    std::vector<std::uint32_t> way;
    for (std::uint32_t vertex = 0; vertex < known.size(); ++vertex) {
      way.clear();
      Known found = Known::no;
      // Up to where the table tells, or another vertex's way ended.
      for (std::uint32_t at = vertex; found == Known::no;) {
        found = known[at];
        if (found != Known::no) break;
        way.push_back(at);
        const auto cell = find_slot(shelf, graph.slots()[at]);
        if (cell) found = cell->cell.flag ? Known::is_private : Known::is_shared;
        at = only_input(graph.inputs_of(at));
        // What has more inputs than one, and is not in the table, is below a private one.
        if (!cell && at == kNone) found = Known::is_private;
      }
      // What is not in the table and reads a private one alone is private, what reads a shared one follows it.
      for (const std::uint32_t at : way) known[at] = found;
    }
    for (std::uint32_t vertex = 0; vertex < known.size(); ++vertex) {
      for (const std::uint32_t input : graph.inputs_of(vertex)) {
        if (known[input] == Known::is_private) ++private_inputs_[vertex];
      }
    }
  }

  /// Calls `at_border(vertex)` for each vertex that has no private input any more.
  template <typename AtBorder>
  void share(const SlotId& slot, const AtBorder& at_border) {
    for (const std::uint32_t reader : readers_.of(*graph_.find(slot))) {
      if (--private_inputs_[reader] == 0) at_border(reader);
    }
  }
  const PackedGraph& graph() const { return graph_; }

 private:
  const PackedGraph& graph_;
  const Readers readers_;
  std::vector<std::uint32_t> private_inputs_;  ///< How many of a vertex's inputs are not shared.
};

}  // namespace

class IndexWriter::NewGroup {
 public:
  NewGroup(IndexWriter& writer, std::uint32_t group, const MatchGraph& graph)
      : writer_(writer),
        shelf_(writer.shelf_),
        group_(group),
        graph_(graph),
        packed_(*writer.shelf_.groups[group].graph),
        run_of_(graph.size(), kNone) {}

  void add() {
    for (std::uint32_t vertex = 0; vertex < graph_.size(); ++vertex) add(vertex);
    for (const Run& run : runs_) {
      Posting& posting = shelf_.postings[run.posting];
      if (run.owner != kNone) {
        posting.slots = run.slots;
        posting.followers = run.followers;
      } else if (run.slots < posting.slots) {
        part(run);
      }
      writer_.append(posting, group_);
    }
  }

 private:
  /// What the group has of a posting's run.
  struct Run {
    std::uint32_t posting = kNone;
    std::uint32_t owner = kNone;         ///< The group whose slots they were until now.
    const PackedGraph* other = nullptr;  ///< Of a group that has all of the run.
    std::uint32_t first = 0;             ///< Vertex.
    std::uint32_t slots = 1;
    std::uint32_t followers = 0;  ///< Their marks.
  };

  void add(std::uint32_t vertex) {
    const auto inputs = graph_.inputs_of(vertex);
    // Below what was nobody's until now there is nothing in the table, and nothing to put there.
    if (!std::ranges::all_of(inputs, [&](std::uint32_t input) { return run_of_[input] != kNone; })) return;
    const SlotId& slot = graph_[vertex].slot;
    const auto found = find_slot(shelf_, slot);
    if (found) return begin_run(vertex, found->cell);
    const std::uint32_t input = only_input(inputs);
    if (input == kNone || !follows(slot, runs_[run_of_[input]])) {
      shelf_.slots.insert(first_half(slot), {.number = group_, .flag = true});
      return;
    }
    Run& run = runs_[run_of_[input]];
    run_of_[vertex] = run_of_[input];
    ++run.slots;
    run.followers |= Posting::mark_of_follower(slot);
    if (run.owner != kNone) share(run.owner, slot);
  }

  void begin_run(std::uint32_t vertex, const Cell& cell) {
    Run run{.posting = cell.number, .first = vertex};
    if (cell.flag) {
      const SlotId& slot = graph_[vertex].slot;
      run.owner = cell.number;
      share(run.owner, slot);
      run.posting = writer_.new_posting(slot, run.owner);
      // The cell may stand elsewhere by now.
      shelf_.slots.replace(find_slot(shelf_, slot)->at, {.number = run.posting});
    }
    run_of_[vertex] = static_cast<std::uint32_t>(runs_.size());
    runs_.push_back(run);
  }

  /// REQUIRES: the slot is not in the table, and its only input is in the run.
  bool follows(const SlotId& slot, Run& run) {
    if (!shelf_.postings[run.posting].may_follow(slot)) return false;
    if (run.other == nullptr) run.other = &graph_with_run(shelf_, shelf_.postings[run.posting]);
    return run.other->find(slot).has_value();
  }

  // Those behind it enter the table as the owner's, but for those that follow: the new group has them, too.
  void share(std::uint32_t owner, const SlotId& slot) {
    auto& view = private_groups_[owner];
    if (view == nullptr) view = std::make_unique<PrivateGroup>(shelf_, *shelf_.groups[owner].graph);
    const PackedGraph& theirs = view->graph();
    view->share(slot, [&](std::uint32_t behind) {
      const SlotId& border = theirs.slots()[behind];
      if (only_input(theirs.inputs_of(behind)) != kNone && packed_.find(border)) return;
      shelf_.slots.insert(first_half(border), {.number = owner, .flag = true});
    });
  }

  // The other groups go on where this one does not: there their run is parted.
  void part(const Run& run) {
    Posting& posting = shelf_.postings[run.posting];
    const PackedGraph& theirs = run.other != nullptr ? *run.other : graph_with_run(shelf_, posting);
    const Readers& readers = readers_of(theirs);
    for (std::uint32_t vertex = run.first; vertex < graph_.size(); ++vertex) {
      if (run_of_[vertex] != run_of_[run.first]) continue;
      for (const std::uint32_t reader : readers.of(*theirs.find(graph_[vertex].slot))) {
        const SlotId& slot = theirs.slots()[reader];
        if (!follows_input(theirs, reader) || packed_.find(slot)) continue;
        const std::uint32_t rest = writer_.copy_posting(run.posting);
        describe_run(shelf_.postings[rest], theirs, readers, reader);
        posting.slots -= shelf_.postings[rest].slots;
        shelf_.slots.insert(first_half(slot), {.number = rest});
      }
    }
    FRESHET_CHECK(posting.slots == run.slots);
    posting.followers = run.followers;
  }

  /// REQUIRES: its only input, if it has one, is shared.
  bool follows_input(const PackedGraph& graph, std::uint32_t vertex) const {
    return only_input(graph.inputs_of(vertex)) != kNone && !find_slot(shelf_, graph.slots()[vertex]);
  }

  /// That of the vertex and all that follow it.
  void describe_run(Posting& posting, const PackedGraph& graph, const Readers& readers, std::uint32_t vertex) {
    std::vector<std::uint32_t> reached = {vertex};
    std::uint32_t followers = 0;
    for (std::size_t next = 0; next < reached.size(); ++next) {
      std::uint32_t before = kNone;
      for (const std::uint32_t reader : readers.of(reached[next])) {
        if (reader == before || !follows_input(graph, reader)) continue;
        reached.push_back(reader);
        followers |= Posting::mark_of_follower(graph.slots()[reader]);
        before = reader;
      }
    }
    posting.slot = graph.slots()[vertex];
    posting.slots = static_cast<std::uint32_t>(reached.size());
    posting.followers = followers;
  }

  const Readers& readers_of(const PackedGraph& graph) {
    auto& readers = readers_[&graph];
    if (readers == nullptr) readers = std::make_unique<Readers>(graph);
    return *readers;
  }

  IndexWriter& writer_;
  Shelf& shelf_;
  const std::uint32_t group_;
  const MatchGraph& graph_;
  const PackedGraph& packed_;
  std::vector<Run> runs_;
  std::vector<std::uint32_t> run_of_;  ///< By vertex: in runs_, or kNone where it is nobody else's.
  std::unordered_map<std::uint32_t, std::unique_ptr<PrivateGroup>> private_groups_;
  std::unordered_map<const PackedGraph*, std::unique_ptr<Readers>> readers_;
};

void IndexWriter::add_slots(std::uint32_t group, const MatchGraph& graph) { NewGroup(*this, group, graph).add(); }

}  // namespace freshet::detail
