// SPDX-License-Identifier: Apache-2.0
#include "repo/match/search.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace freshet::detail {
namespace {

// What the steps cost, in nanoseconds, to choose between them. Only their ratios matter, and those only for the time
// that a search takes.
constexpr double kWeighGroup = 50.0;
constexpr double kSkipGroup = 1.5;
constexpr double kCountEntry = 1.0;
constexpr double kCountGroup = 1.0;

/// Questions for whose answers memory is asked beforehand. Few groups are asked more.
constexpr std::size_t kAskedAhead = 6;
/// Questions that marks are asked; more seldom change the answer.
constexpr std::size_t kMarksAsked = 12;

/// Layers for which memory is asked before it is known whether they follow.
constexpr std::size_t kFollowersAhead = 6;
/// Weights of more bits than this are added one by one.
constexpr std::size_t kWeightPlanesMax = 3;

/// More layers than this are counted at once: their sets would take more time than they save.
constexpr std::size_t kBoundedLayersMax = 4096;

}  // namespace

void TopRows::add(std::uint64_t weight, std::uint32_t version) {
  const auto worse_last = [this](const Row& left, const Row& right) { return better(left, right); };
  if (full()) {
    std::ranges::pop_heap(heap_, worse_last);
    heap_.back() = {weight, version};
  } else {
    heap_.push_back({weight, version});
  }
  std::ranges::push_heap(heap_, worse_last);
  const Version& worst = shelf_.versions[heap_.front().version];
  worst_quality_ = bound_of(worst.quality);
  worst_commit_ = worst.commit;
}

std::span<const TopRows::Row> TopRows::sorted() {
  std::ranges::sort(heap_, [this](const Row& left, const Row& right) { return better(left, right); });
  return heap_;
}

QuerySlots::QuerySlots(const MatchGraph& graph, std::pmr::memory_resource* memory)
    : graph_(graph), mask_(std::bit_ceil(4 * graph.size() + 4) - 1), cells_(mask_ + 1, kNone, memory) {
  for (std::uint32_t vertex = 0; vertex < graph.size(); ++vertex) {
    std::size_t at = home(graph[vertex].slot);
    while (cells_[at] != kNone) at = (at + 1) & mask_;
    cells_[at] = vertex;
  }
}

Search::Search(const Shelf& shelf, const MatchQuery& query, const std::optional<VersionId>& excluded,
               std::pmr::memory_resource* memory)
    : shelf_(shelf),
      query_(query),
      graph_(*query.graph),
      memory_(memory),
      tags_(memory),
      excluded_(memory),
      rows_(shelf, query.top, memory),
      slots_(graph_, memory),
      weights_(graph_.size(), memory),
      shared_of_(graph_.size(), kNone, memory),
      shared_(memory),
      private_groups_(memory),
      above_(memory),
      below_(memory),
      open_(memory),
      weight_planes_(memory),
      counted_(memory),
      asked_(memory),
      unknown_(memory),
      processed_(memory) {
  for (const auto& [key, value] : query.tags) tags_.push_back(tag_digest(key, value));
  for (std::size_t vertex = 0; vertex < graph_.size(); ++vertex) {
    weights_[vertex] = weight(query.objective, weight_of(graph_[vertex]));
  }
  if (!excluded) return;
  for (auto at = find_kin(shelf, *excluded).value_or(kNone); at != kNone;) {
    excluded_.push_back(at);
    // What came from damaged records may run in a circle.
    if (excluded_.size() > shelf.kin.size()) break;
    at = shelf.kin[at].ancestor;
  }
  std::ranges::sort(excluded_);
}

std::vector<MatchRow> Search::run() {
  look_up();
  weigh_private_groups();
  if (!shared_.empty()) search_shared();
  std::vector<MatchRow> rows;
  const auto sorted = rows_.sorted();
  rows.reserve(sorted.size());
  for (const TopRows::Row& row : sorted) rows.push_back(row_of(row));
  return rows;
}

void Search::look_up() {
  constexpr std::size_t kAhead = 16;
  const std::size_t vertices = graph_.size();
  for (std::size_t vertex = 0; vertex < std::min(kAhead, vertices); ++vertex) {
    shelf_.slots.prefetch(first_half(graph_[vertex].slot));
  }
  for (std::uint32_t vertex = 0; vertex < vertices; ++vertex) {
    if (vertex + kAhead < vertices) shelf_.slots.prefetch(first_half(graph_[vertex + kAhead].slot));
    const auto inputs = graph_.inputs_of(vertex);
    // Below what nobody has, or one group alone, there is nothing in the table.
    if (!std::ranges::all_of(inputs, [&](std::uint32_t input) { return shared_of_[input] != kNone; })) continue;
    const auto found = find_slot(shelf_, graph_[vertex].slot);
    if (!found) {
      const std::uint32_t input = only_input(inputs);
      if (input == kNone || !follows(vertex, shared_[shared_of_[input]])) continue;
      shared_of_[vertex] = shared_of_[input];
      shared_[shared_of_[input]].weight += weights_[vertex];
      continue;
    }
    if (found->cell.flag) {
      private_groups_.push_back(found->cell.number);
      continue;
    }
    const auto groups = static_cast<std::uint32_t>(shelf_.postings[found->cell.number].groups().size());
    shared_of_[vertex] = static_cast<std::uint32_t>(shared_.size());
    shared_.push_back({.vertex = vertex, .posting = found->cell.number, .groups = groups, .weight = weights_[vertex]});
  }
  std::ranges::sort(private_groups_);
  private_groups_.erase(std::unique(private_groups_.begin(), private_groups_.end()), private_groups_.end());
}

bool Search::follows(std::uint32_t vertex, Shared& input) const {
  const Posting& posting = shelf_.postings[input.posting];
  if (!posting.may_follow(graph_[vertex].slot)) return false;
  const auto ask_ahead = [&](std::size_t next) {
    if (next < graph_.size()) input.run->prefetch(graph_[next].slot);
  };
  if (input.run == nullptr) {
    input.run = &graph_with_run(shelf_, posting);
    for (std::size_t next = vertex; next < vertex + kFollowersAhead; ++next) ask_ahead(next);
  }
  ask_ahead(vertex + kFollowersAhead);
  return input.run->find(graph_[vertex].slot).has_value();
}

void Search::weigh_private_groups() {
  for (const std::uint32_t number : private_groups_) {
    const Group& group = shelf_.groups[number];
    consider(group, weight_of_group(*group.graph));
  }
}

// Keeps `open`: the shared layers that an unseen group might have. All groups of a posting are weighed; whoever is
// unseen then has neither that layer nor any that needs it. When what is open weighs less than the worst row, nobody
// unseen is an answer.
void Search::search_shared() {
  if (shared_.size() > kBoundedLayersMax) return count_shared();
  close();
  double counting = kCountGroup * shelf_.groups.size();
  for (const Shared& shared : shared_) counting += shared.weight == 0 ? 0 : kCountEntry * shared.groups;
  double spent = 0;
  bool scanned = false;
  for (;;) {
    const std::uint64_t open_weight = weight_of_bits(open_, open_);
    if (open_weight == 0 || open_weight < rows_.least_weight()) return;
    const std::optional<std::size_t> number = next_shared(open_weight);
    if (!number) return;
    if (!scanned && !ties_only(open_weight) && worth_scanning(shared_[*number].groups)) {
      scanned = true;
      if (scan()) return;
    }
    spent += (ties_only(open_weight) ? kSkipGroup : kWeighGroup) * shared_[*number].groups;
    if (spent > counting) return count_shared();
    process(*number, open_weight);
    for (std::size_t word = 0; word < words_; ++word) open_[word] &= ~above_[*number * words_ + word];
  }
}

void Search::close() {
  words_ = (shared_.size() + 63) / 64;
  above_.assign(shared_.size() * words_, 0);
  below_.assign(shared_.size() * words_, 0);
  open_.assign(words_, 0);
  counted_.assign(words_, 0);
  unknown_.assign(words_, 0);
  std::uint64_t weights = 0;
  for (const Shared& shared : shared_) weights |= shared.weight;
  planes_ = static_cast<std::size_t>(std::bit_width(weights));
  if (planes_ > kWeightPlanesMax) planes_ = 0;
  weight_planes_.assign(planes_ * words_, 0);
  for (std::size_t number = 0; number < shared_.size(); ++number) {
    std::uint64_t* mine = &below_[number * words_];
    mine[number / 64] |= std::uint64_t{1} << (number % 64);
    for (const std::uint32_t input : graph_.inputs_of(shared_[number].vertex)) {
      const std::uint64_t* theirs = &below_[shared_of_[input] * words_];
      for (std::size_t word = 0; word <= number / 64; ++word) mine[word] |= theirs[word];
    }
  }
  for (std::size_t number = shared_.size(); number-- > 0;) {
    const Shared& shared = shared_[number];
    std::uint64_t* mine = &above_[number * words_];
    const std::uint64_t bit = std::uint64_t{1} << (number % 64);
    mine[number / 64] |= bit;
    open_[number / 64] |= bit;
    if (shared.weight != 0) counted_[number / 64] |= bit;
    for (std::size_t plane = 0; plane < planes_; ++plane) {
      if ((shared.weight >> plane & 1) != 0) weight_planes_[number / 64 * planes_ + plane] |= bit;
    }
    for (const std::uint32_t input : graph_.inputs_of(shared.vertex)) {
      std::uint64_t* theirs = &above_[shared_of_[input] * words_];
      for (std::size_t word = number / 64; word < words_; ++word) theirs[word] |= mine[word];
    }
  }
}

std::uint64_t Search::weight_of_bits(std::span<const std::uint64_t> bits, std::span<const std::uint64_t> also) const {
  std::uint64_t sum = 0;
  for (std::size_t word = 0; word < words_; ++word) {
    std::uint64_t both = bits[word] & also[word] & counted_[word];
    if (planes_ != 0) {
      for (std::size_t plane = 0; plane < planes_; ++plane) {
        const std::uint64_t heavy = both & weight_planes_[word * planes_ + plane];
        sum += static_cast<std::uint64_t>(std::popcount(heavy)) << plane;
      }
      continue;
    }
    for (; both != 0; both &= both - 1) {
      sum += shared_[word * 64 + static_cast<std::size_t>(std::countr_zero(both))].weight;
    }
  }
  return sum;
}

// The first one is the shortest posting: it is that of a layer at the end, and if one of its groups has all of them,
// the search is over. Then the one that lowers the bound most for what it costs, but never below what is needed.
std::optional<std::size_t> Search::next_shared(std::uint64_t open_weight) const {
  const bool first = !rows_.full();
  const std::uint64_t gap = open_weight - std::min(open_weight, rows_.least_weight()) + 1;
  std::optional<std::size_t> best;
  double best_value = -1;
  for (std::size_t number = 0; number < shared_.size(); ++number) {
    if ((open_[number / 64] >> (number % 64) & 1) == 0) continue;
    const std::span<const std::uint64_t> above(&above_[number * words_], words_);
    const std::uint64_t lowers = weight_of_bits(above, open_);
    if (lowers == 0) continue;
    const double gain = first ? 1.0 : static_cast<double>(std::min(lowers, gap));
    const double value = gain / (1.0 + shared_[number].groups);
    // Of equals the later one: it is nearer to the end.
    if (value >= best_value) {
      best = number;
      best_value = value;
    }
  }
  return best;
}

void Search::process(std::size_t number, std::uint64_t open_weight) {
  choose_questions(number, open_weight);
  std::array<std::uint32_t, kBatch> batch;
  std::size_t gathered = 0;
  for_each_group(shelf_.postings[shared_[number].posting], [&](std::uint32_t group) {
    if (ties_only(open_weight) && !rows_.may_tie(shelf_.bounds[group])) return;
    if (rows_.full() && !may_weigh_enough(group, number, open_weight)) return;
    batch[gathered++] = group;
    if (gathered < kBatch) return;
    weigh_batch(batch, number, open_weight);
    gathered = 0;
  });
  weigh_batch(std::span(batch).first(gathered), number, open_weight);
  processed_.push_back(shared_[number].vertex);
}

// The layers that tell most about whether a group is worth weighing come first: those that are rare, and without which
// much else is missing. What is below `number` is there anyway.
void Search::choose_questions(std::size_t number, std::uint64_t open_weight) {
  const std::uint64_t gap = open_weight - std::min(open_weight, rows_.least_weight()) + 1;
  asked_.clear();
  for (std::size_t other = 0; other < shared_.size(); ++other) {
    const std::uint64_t bit = std::uint64_t{1} << (other % 64);
    if ((open_[other / 64] & counted_[other / 64] & ~below_[number * words_ + other / 64] & bit) == 0) continue;
    const std::span<const std::uint64_t> above(&above_[other * words_], words_);
    const auto gain = static_cast<double>(std::min(weight_of_bits(above, open_), gap));
    asked_.push_back({.number = static_cast<std::uint32_t>(other),
                      .vertex = shared_[other].vertex,
                      .value = static_cast<float>(gain / (1.0 + shared_[other].groups)),
                      .mark = mark_of(graph_[shared_[other].vertex].slot)});
  }
  std::ranges::stable_sort(asked_, std::ranges::greater(), &Question::value);
}

void Search::weigh_batch(std::span<const std::uint32_t> batch, std::size_t number, std::uint64_t open_weight) {
  // They lie anywhere in memory, so they are asked for all at once.
  for (const std::uint32_t index : batch) __builtin_prefetch(&shelf_.groups[index]);
  for (const std::uint32_t index : batch) __builtin_prefetch(shelf_.groups[index].graph.get());
  const std::size_t first_questions = std::min<std::size_t>(asked_.size(), ties_only(open_weight) ? 1 : kAskedAhead);
  for (const std::uint32_t index : batch) {
    const PackedGraph* graph = shelf_.groups[index].graph.get();
    if (graph == nullptr) continue;
    for (std::size_t i = 0; i < first_questions; ++i) graph->prefetch(graph_[asked_[i].vertex].slot);
  }
  for (const std::uint32_t index : batch) {
    if (!might_hold(index, open_weight)) continue;
    const Group& group = shelf_.groups[index];
    const PackedGraph* const graph = group.graph.get();
    if (graph == nullptr) continue;  // It was removed.
    const std::uint64_t sum = weigh(index, *graph, number, open_weight);
    if (sum == 0 || std::ranges::binary_search(private_groups_, index)) continue;
    // It was weighed with the posting of another of its layers.
    const auto has = [&](std::uint32_t vertex) { return graph->find(graph_[vertex].slot).has_value(); };
    if (!std::ranges::any_of(processed_, has)) consider(group, sum);
  }
}

std::uint64_t Search::without(const Question& question) {
  const std::span<const std::uint64_t> above(&above_[question.number * words_], words_);
  const std::uint64_t lost = weight_of_bits(above, unknown_);
  for (std::size_t word = 0; word < words_; ++word) unknown_[word] &= ~above[word];
  return lost;
}

bool Search::too_little(std::uint32_t index, std::uint64_t most) const {
  return most < rows_.least_weight() ||
         (rows_.full() && most == rows_.least_weight() && !rows_.may_tie(shelf_.bounds[index]));
}

bool Search::may_weigh_enough(std::uint32_t index, std::size_t number, std::uint64_t open_weight) {
  const std::uint64_t marks = shelf_.bounds[index].marks;
  begin_unknown(number);
  std::uint64_t most = open_weight;
  for (const Question& question : std::span(asked_).first(std::min(asked_.size(), kMarksAsked))) {
    if ((marks & question.mark) != 0) continue;
    most -= without(question);
    if (too_little(index, most)) return false;
  }
  return true;
}

void Search::begin_unknown(std::size_t number) {
  for (std::size_t word = 0; word < words_; ++word) {
    unknown_[word] = open_[word] & counted_[word] & ~below_[number * words_ + word];
  }
}

// A layer that the group has brings all that it needs, and one that it lacks takes along all that need it, so few are
// looked for; and none any more when what may be left is too little.
std::uint64_t Search::weigh(std::uint32_t index, const PackedGraph& graph, std::size_t number,
                            std::uint64_t open_weight) {
  begin_unknown(number);
  std::uint64_t most = open_weight;
  for (const Question& question : asked_) {
    if ((unknown_[question.number / 64] >> (question.number % 64) & 1) == 0) continue;
    if (graph.find(graph_[question.vertex].slot)) {
      const std::uint64_t* below = &below_[question.number * words_];
      for (std::size_t word = 0; word < words_; ++word) unknown_[word] &= ~below[word];
      continue;
    }
    most -= without(question);
    if (too_little(index, most)) return 0;
  }
  return most;
}

void Search::count_shared() {
  rows_.clear();
  weigh_private_groups();
  std::uint64_t all = 0;
  for (const Shared& shared : shared_) all += shared.weight;
  return all <= std::numeric_limits<std::uint32_t>::max() ? count_as<std::uint32_t>() : count_as<std::uint64_t>();
}

template <typename Count>
void Search::count_as() {
  std::pmr::vector<Count> counts(shelf_.groups.size(), 0, memory_);
  for (const Shared& shared : shared_) {
    const auto weight = static_cast<Count>(shared.weight);
    if (weight == 0) continue;
    for_each_group(shelf_.postings[shared.posting],
                   [weight, first = counts.data()](std::uint32_t group) { first[group] += weight; });
  }
  // They have layers that were not counted.
  for (const std::uint32_t group : private_groups_) counts[group] = 0;
  for (std::uint32_t number = 0; number < counts.size(); ++number) {
    if (counts[number] < rows_.least_weight()) continue;
    if (might_hold(number, counts[number])) consider(shelf_.groups[number], counts[number]);
  }
}

std::uint64_t Search::weight_of_group(const PackedGraph& graph) const {
  std::uint64_t sum = 0;
  for (const SlotId& slot : graph.slots()) {
    const std::uint32_t vertex = slots_.find(slot);
    if (vertex != kNone) sum += weights_[vertex];
  }
  return sum;
}

bool Search::might_hold(std::uint32_t number, std::uint64_t weight) const {
  if (rows_.full() && weight == rows_.least_weight() && !rows_.may_tie(shelf_.bounds[number])) return false;
  const Group& group = shelf_.groups[number];
  const auto admits_best = [&](bool weights) {
    const auto versions = group.versions_with(weights);
    return !versions.empty() && rows_.admits(weight, versions.back());
  };
  return admits_best(true) || (query_.any && admits_best(false));
}

void Search::consider(const Group& group, std::uint64_t weight) {
  const auto add_all = [&](bool weights) {
    const auto versions = group.versions_with(weights);
    for (std::size_t at = versions.size(); at-- > 0 && rows_.admits(weight, versions[at]);) {
      if (is_answer(shelf_.versions[versions[at]])) rows_.add(weight, versions[at]);
    }
  };
  add_all(true);
  if (query_.any) add_all(false);
}

bool Search::is_answer(const Version& version) const {
  if (query_.least_quality && !(version.quality >= *query_.least_quality)) return false;
  if (!tags_.empty()) {
    if (version.tags == kNone) return false;
    const std::vector<Digest>& digests = shelf_.tag_sets[version.tags].digests;
    for (const Digest& tag : tags_) {
      if (!std::ranges::binary_search(digests, tag)) return false;
    }
  }
  return excluded_.empty() || !std::ranges::binary_search(excluded_, version.kin);
}

MatchRow Search::row_of(const TopRows::Row& row) const {
  const Version& version = shelf_.versions[row.version];
  MatchRow answer{.version = {.model = std::string(shelf_.models[version.model].text()), .number = version.number},
                  .id = shelf_.id_of(version.kin),
                  .commit = version.commit};
  if (version.has_quality()) answer.quality = version.quality;
  for (const SlotId& slot : shelf_.groups[version.group].graph->slots()) {
    const std::uint32_t vertex = slots_.find(slot);
    if (vertex != kNone) answer.lcp += weight_of(graph_[vertex]);
  }
  return answer;
}

}  // namespace freshet::detail
