// SPDX-License-Identifier: Apache-2.0
#include "repo/lineage/lineage_drawing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>
#include <string>

#include "core/base/text.h"
#include "repo/lineage/lineage_layout.h"
#include "tests/repo/world.h"

namespace freshet {
namespace {

using testing::HasSubstr;
using testing::Not;

VersionName net(std::uint64_t number) { return number == 0 ? VersionName{} : VersionName{"net", number}; }

LineageRow drawn_row(std::uint64_t number, std::uint64_t ancestor, std::optional<double> quality = std::nullopt) {
  return {.version = net(number), .ancestor = net(ancestor), .own_bytes = 1, .quality = quality};
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(LineageDrawing, NoTwoVersionsShareAPlaceAndChildrenStandOneColumnFurther) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<LineageRow> rows;
    for (std::uint64_t number = 1; number <= 200; ++number) rows.push_back(drawn_row(number, random() % number));
    std::ranges::shuffle(rows, random);
    const LineageLayout layout = layout_of(rows);
    std::set<std::pair<std::uint32_t, double>> places;
    std::set<double> leaves;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      EXPECT_TRUE(places.emplace(layout.column[i], layout.line[i]).second);
      EXPECT_LT(layout.column[i], layout.columns);
      EXPECT_LT(layout.line[i], static_cast<double>(layout.lines));
      const std::size_t parent = layout.parent[i];
      ASSERT_EQ(parent == LineageLayout::kNone, rows[i].ancestor.number == 0);
      if (parent == LineageLayout::kNone) continue;
      EXPECT_EQ(rows[parent].version, rows[i].ancestor);
      EXPECT_EQ(layout.column[i], layout.column[parent] + 1);
    }
  }
}

TEST(LineageDrawing, CirclesAndDeepLinesEnd) {
  const std::vector<LineageRow> circle = {drawn_row(1, 3), drawn_row(2, 1), drawn_row(3, 2), drawn_row(4, 4),
                                          drawn_row(5, 3)};
  EXPECT_EQ(count_of(lineage_svg(circle), "<circle"), 5u);
  EXPECT_EQ(count_of(lineage_dot(circle), "tooltip="), 5u);
  std::vector<LineageRow> line;
  for (std::uint64_t number = 20'000; number > 0; --number) line.push_back(drawn_row(number, number - 1));
  EXPECT_EQ(layout_of(line).columns, 20'000u);
  EXPECT_EQ(layout_of(line).lines, 1u);
  EXPECT_EQ(layout_of({}).lines, 0u);
  EXPECT_THAT(lineage_svg({}), HasSubstr("</svg>"));
}

TEST(LineageDrawing, BestIsRingedRetiredDashedAndTheUnknownAncestorHintedAt) {
  std::vector<LineageRow> rows = {drawn_row(2, 1, 0.25), drawn_row(3, 2, 0.75), drawn_row(4, 2)};
  rows[2].retired = true;
  const std::string svg = lineage_svg(rows, {.title = "a <search> & \"more\""});
  EXPECT_EQ(count_of(svg, "class=\"best\""), 1u);
  EXPECT_EQ(count_of(svg, "<g class=\"retired\" data-v=\"net@4\">"), 1u);
  EXPECT_EQ(count_of(svg, "class=\"stub\""), 1u);
  EXPECT_EQ(count_of(svg, "<path d="), 2u) << "two edges";
  EXPECT_THAT(svg, HasSubstr("a &lt;search&gt; &amp; &quot;more&quot;"));
  EXPECT_THAT(svg, HasSubstr(">net@3  0.75 (best)</text>"));
  const std::string dot = lineage_dot(rows, {.title = "a \"b\"\\"});
  EXPECT_THAT(dot, HasSubstr(R"(digraph "a \"b\"\\" {)"));
  EXPECT_THAT(dot, HasSubstr("n0 -> n1;"));
  EXPECT_THAT(dot, HasSubstr("n0 -> n2;"));
  EXPECT_THAT(dot, HasSubstr("label=\"net@1\", style=dotted"));
  EXPECT_EQ(count_of(dot, "dashed"), 1u);
}

TEST(LineageDrawing, NamesCannotCommandWhoLooksAtIt) {
  std::vector<LineageRow> rows = {drawn_row(2, 1, 0.25)};
  const std::string hostile = "a\x1b[2J\xc2\x9b\xe2\x80\xae\xff\x7f z";
  rows[0].version.model = hostile;
  rows[0].ancestor.model = hostile;
  for (const std::string& text : {lineage_svg(rows, {.title = hostile}), lineage_dot(rows, {.title = hostile})}) {
    EXPECT_EQ(printable(text, "\n"), text);
    EXPECT_THAT(text, HasSubstr("a?[2J????"));
  }
}

TEST(LineageDrawing, TheOneThatIsNamedIsRinged) {
  const std::vector<LineageRow> rows = {drawn_row(1, 0, 0.5), drawn_row(2, 1, 0.75), drawn_row(3, 1, 0.75)};
  for (const std::uint64_t best : {1, 2, 3}) {
    const std::string svg = lineage_svg(rows, {.best = net(best)});
    EXPECT_EQ(count_of(svg, "class=\"best\""), 1u);
    const std::size_t ring = svg.find("class=\"best\"");
    EXPECT_EQ(svg.substr(svg.rfind("<title>", ring) + 7, 5), "net@" + std::to_string(best));
    const std::string dot = lineage_dot(rows, {.best = net(best)});
    EXPECT_EQ(count_of(dot, "penwidth=2"), 1u);
    EXPECT_LT(dot.find("n" + std::to_string(best - 1) + " [label"), dot.find("penwidth=2"));
  }
  EXPECT_EQ(count_of(lineage_svg(rows, {.best = net(9)}), "class=\"best\""), 0u);
}

TEST(LineageDrawing, ColoursFollowQualityAndNeedNoNumberToBeSane) {
  const std::vector<LineageRow> rows = {drawn_row(1, 0, 0.0), drawn_row(2, 0, 1.0), drawn_row(3, 0)};
  const auto range = quality_range(rows);
  ASSERT_TRUE(range.has_value());
  EXPECT_EQ(range->best_row, 1u);
  EXPECT_EQ(quality_colour(0.0, range), colour_at(0));
  EXPECT_EQ(quality_colour(1.0, range), colour_at(1));
  EXPECT_NE(quality_colour(0.5, range), colour_at(1));
  EXPECT_EQ(quality_colour(std::nullopt, range), quality_colour(std::nan(""), range));
  const std::vector<LineageRow> odd = {drawn_row(1, 0, std::nan("")), drawn_row(2, 0, INFINITY),
                                       drawn_row(3, 0, -1e308), drawn_row(4, 0, 1e308)};
  EXPECT_EQ(quality_range(odd)->best_row, 3u);
  EXPECT_EQ(quality_range(rows, true)->best_row, 0u);
  EXPECT_EQ(quality_colour(0.0, quality_range(rows, true)), colour_at(1)) << "lower is better";
  EXPECT_THAT(lineage_svg(odd), Not(HasSubstr("fill=\"nan")));
  EXPECT_FALSE(quality_range(std::vector<LineageRow>{drawn_row(1, 0, std::nan(""))}).has_value());
}

/// Of the attribute of an image's first element.
double page_size(const std::string& svg, const std::string& name) {
  return std::stod(svg.substr(svg.find(" " + name + "=\"") + name.size() + 3));
}

TEST(LineageDrawing, APageHoldsEveryLineage) {
  // The number of a version's ancestor, for lineages of all kinds of shapes.
  const std::vector<std::pair<std::string, std::function<std::uint64_t(std::uint64_t)>>> shapes = {
      {"a chain", [](std::uint64_t number) { return number - 1; }},
      {"a star", [](std::uint64_t number) { return number == 1 ? 0 : 1; }},
      {"alone", [](std::uint64_t /*number*/) { return 0; }},
      {"a chain with leaves", [](std::uint64_t number) { return number < 3 ? number - 1 : number - 1 - number % 2; }},
      {"a binary tree", [](std::uint64_t number) { return number / 2; }},
      {"chains of a root", [](std::uint64_t number) { return number <= 70 ? 0 : number - 70; }}};
  for (const auto& [shape, ancestor] : shapes) {
    for (const std::uint64_t versions : {1, 2, 3, 13, 150, 5000}) {
      SCOPED_TRACE(shape + ", " + std::to_string(versions));
      std::vector<LineageRow> rows;
      for (std::uint64_t number = 1; number <= versions; ++number) {
        rows.push_back(drawn_row(number, ancestor(number), number == versions / 3 + 1 ? 0.25 : 0.5));
      }
      const std::string svg = lineage_svg(rows, {.measure = "loss", .lower_is_better = true});
      const double width = page_size(svg, "width");
      const double height = page_size(svg, "height");
      EXPECT_LE(width, 1120);
      EXPECT_LE(height, 790);
      EXPECT_GE(width, 1.4 * height);
      const std::string best = "net@" + std::to_string(versions / 3 + 1);
      EXPECT_EQ(count_of(svg, ">" + best + "  0.25 (best)</text>"), 1u);
      EXPECT_EQ(count_of(svg, "class=\"best\""), 1u);
      EXPECT_EQ(count_of(svg, ">the best</text>"), 1u) << "the legend";
      EXPECT_LT(svg.size(), 2'500'000u);
    }
  }
}

TEST(LineageDrawing, AWholeRepositoryIsAllItsModels) {
  std::mt19937_64 random(1);
  const auto repository = open_or_die(make_memory_backend());
  const auto architecture = test_architecture({4});
  TestVersion first = make_version("b", test_id(1), architecture, nullptr, {}, random);
  first.manifest.name = *put(*repository, first);
  ASSERT_TRUE(put(*repository, make_version("a", test_id(2), architecture, &first, {0}, random)));
  const auto rows = all_versions(*repository);
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ(layout_of(*rows).columns, 2u);
}

}  // namespace
}  // namespace freshet
