// SPDX-License-Identifier: Apache-2.0
#include "bindings/cli/tier/epochs_svg.h"

#include <algorithm>
#include <vector>

#include "bindings/cli/frame/output.h"
#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/markup.h"

namespace freshet::cli {
namespace {

constexpr double kSvgMargin = 24;
constexpr double kSvgTop = 64;
constexpr double kBarsHeight = 160;
constexpr double kPanelWidth = 360;
constexpr std::size_t kBarsMax = 100;
constexpr const char* kTierColour = "#34609e";
constexpr const char* kSourceColour = "#fae23c";

struct Bar {
  std::size_t first = 0;  ///< Epochs, from 1.
  std::size_t last = 0;
  std::uint64_t from_tier = 0;
  std::uint64_t from_source = 0;
};

template <typename Tier, typename Source>
std::vector<Bar> bars_of(std::span<const tier::EpochRow> rows, Tier of_tier, Source of_source) {
  const std::size_t each = std::max<std::size_t>(1, (rows.size() + kBarsMax - 1) / kBarsMax);
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % each == 0) bars.push_back({.first = i + 1});
    bars.back().last = i + 1;
    bars.back().from_tier += of_tier(rows[i]);
    bars.back().from_source += of_source(rows[i]);
  }
  return bars;
}

template <typename Shown>
std::string panel(double left, std::string_view name, const std::vector<Bar>& bars, Shown shown) {
  std::uint64_t most = 1;
  for (const Bar& bar : bars) most = std::max(most, bar.from_tier + bar.from_source);
  const double width = kPanelWidth / static_cast<double>(std::max<std::size_t>(bars.size(), 1));
  const double bottom = kSvgTop + kBarsHeight;
  std::string text =
      format("<text x=\"{:.1f}\" y=\"{:.1f}\">{}, {} at most</text>\n", left, kSvgTop - 8, name, shown(most));
  const auto height = [most](std::uint64_t value) {
    return kBarsHeight * static_cast<double>(value) / static_cast<double>(most);
  };
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const Bar& bar = bars[i];
    const double at = left + width * static_cast<double>(i);
    const double wide = std::max(width - 2, width * 0.8);
    const std::string epochs =
        bar.first == bar.last ? format("epoch {}", bar.first) : format("epochs {} to {}", bar.first, bar.last);
    text += format("<g><title>{}: {} from a tier, {} from the source</title>", epochs, shown(bar.from_tier),
                   shown(bar.from_source));
    text += format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>", at,
                   bottom - height(bar.from_tier), wide, height(bar.from_tier), kTierColour);
    text +=
        format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/></g>\n", at,
               bottom - height(bar.from_tier) - height(bar.from_source), wide, height(bar.from_source), kSourceColour);
  }
  const std::size_t last = bars.empty() ? 0 : bars.back().last;
  return text + format("<path d=\"M{:.1f} {:.1f}h{:.1f}\"/><text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", left, bottom,
                       kPanelWidth, left, bottom + 16,
                       last == 0   ? "nothing was opened yet"
                       : last == 1 ? "epoch 1"
                                   : format("epochs 1 to {}", last));
}

}  // namespace

std::string epochs_svg(std::span<const tier::EpochRow> rows, const std::string& title) {
  while (!rows.empty() && rows.back().opens == 0) rows = rows.first(rows.size() - 1);
  const double width = 3 * kSvgMargin + 2 * kPanelWidth;
  const double height = kSvgTop + kBarsHeight + 2 * kSvgMargin;
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\">\n"
      "<style>text{{font:11px "
      "sans-serif;fill:#222}}.title{{font-weight:bold}}path{{fill:none;stroke:#9a9a9a}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{2}\" y=\"20\" class=\"title\">{3}</text>\n"
      "<rect x=\"{2}\" y=\"29\" width=\"10\" height=\"10\" fill=\"{4}\"/><text x=\"{5}\" y=\"38\">from a tier</text>\n"
      "<rect x=\"{6}\" y=\"29\" width=\"10\" height=\"10\" fill=\"{7}\"/><text x=\"{8}\" y=\"38\">from the "
      "source</text>\n",
      width, height, kSvgMargin, escaped_markup(title), kTierColour, kSvgMargin + 16, kSvgMargin + 96, kSourceColour,
      kSvgMargin + 112);
  svg += panel(kSvgMargin, "opens",
               bars_of(
                   rows, [](const tier::EpochRow& row) { return row.hits; },
                   [](const tier::EpochRow& row) { return row.opens - std::min(row.opens, row.hits); }),
               [](std::uint64_t value) { return format("{}", value); });
  svg += panel(2 * kSvgMargin + kPanelWidth, "bytes",
               bars_of(
                   rows, [](const tier::EpochRow& row) { return row.hit_bytes; },
                   [](const tier::EpochRow& row) { return row.miss_bytes; }),
               [](std::uint64_t value) { return human_bytes(value); });
  return svg + "</svg>\n";
}

}  // namespace freshet::cli
