// SPDX-License-Identifier: Apache-2.0
#include "repo/lineage/lineage_drawing.h"

#include <algorithm>
#include <cmath>

#include "core/base/format.h"
#include "core/base/text.h"
#include "core/words/markup.h"
#include "repo/lineage/lineage_fold.h"
#include "repo/lineage/lineage_layout.h"

namespace freshet {
namespace {

constexpr double kPageWidth = 1120;
constexpr double kPageHeight = 790;
constexpr double kWidthToHeight = 1.4;
constexpr double kMargin = 24;
constexpr double kLegendHeight = 44;
constexpr double kLineMax = 24;
constexpr double kNamedLineMin = 14;     ///< In a lower line there is no room for a name.
constexpr std::size_t kFoldStops = 480;  ///< Colours in all folded marks together.
constexpr double kCharacterWidth = 6.2;  // Of 11 px sans-serif, on average.

std::string quality_text(const LineageRow& row) { return row.quality ? format("{:.4g}", *row.quality) : ""; }

std::string quoted_dot(std::string_view text) {
  std::string quoted = "\"";
  for (const char c : printable(text, "\n")) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string described(const LineageRow& row, const std::string& measure) {
  std::string text = to_string(row.version);
  if (row.quality) text += format("\n{} {}", measure, *row.quality);
  text += format("\nown {} bytes, inherited {}", row.own_bytes, row.inherited_bytes);
  if (row.ancestor.number != 0) text += "\nfrom " + to_string(row.ancestor);
  if (row.retired) text += "\nretired";
  return text;
}

/// The row that is to be ringed; kNoRow for none.
std::size_t best_row(std::span<const LineageRow> rows, const LineageDrawing& drawing,
                     const std::optional<QualityRange>& range) {
  if (drawing.best.model.empty()) return range ? range->best_row : LineageMark::kNoRow;
  const auto named = std::ranges::find(rows, drawing.best, &LineageRow::version);
  return named == rows.end() ? LineageMark::kNoRow : static_cast<std::size_t>(named - rows.begin());
}

/// All that an image is made of.
struct Scene {
  std::span<const LineageRow> rows;
  const LineageDrawing& drawing;
  std::optional<QualityRange> range;
  VersionName best;  ///< Empty: none.
  std::vector<LineageMark> marks;
  LineageLayout layout;

  Scene(std::span<const LineageRow> given, const LineageDrawing& options)
      : rows(given), drawing(options), range(quality_range(given, options.lower_is_better)) {
    const std::size_t kept = best_row(rows, drawing, range);
    if (kept != LineageMark::kNoRow) best = rows[kept].version;
    marks = folded(rows, kept);
    layout = layout_of(marks);
  }

  bool is_best(const LineageRow& row) const { return best.number != 0 && row.version == best; }

  /// Above the mark.
  std::string label(const LineageMark& mark) const {
    if (mark.folded.empty()) {
      const std::string quality = quality_text(mark.row);
      return to_string(mark.row.version) + (quality.empty() ? "" : "  " + quality) +
             (is_best(mark.row) ? " (best)" : "");
    }
    const VersionName& first = rows[mark.folded.front()].version;
    const VersionName& last = rows[mark.folded.back()].version;
    if (first.model != last.model) return to_string(first) + " …";
    return format("{} … @{}", to_string(first), last.number);
  }

  std::string title(const LineageMark& mark) const {
    if (mark.folded.empty()) return described(mark.row, drawing.measure);
    const auto count = std::ranges::count_if(mark.folded, [&](std::size_t row) { return rows[row].retired; });
    std::string text = format("{} versions, {} to {}", mark.folded.size(), to_string(rows[mark.folded.front()].version),
                              to_string(rows[mark.folded.back()].version));
    std::vector<LineageRow> inside;
    for (const std::size_t row : mark.folded) inside.push_back(rows[row]);
    if (const auto here = quality_range(inside, drawing.lower_is_better)) {
      text += format("\n{} {} to {}", drawing.measure, here->worst, here->best);
    }
    text += format("\nown {} bytes", mark.row.own_bytes);
    return count == 0 ? text : text + format("\n{} retired", count);
  }
};

/// Places in pixels. Where the page has no room for names, marks come nearer to each other.
class Canvas {
 public:
  explicit Canvas(const Scene& scene) : layout_(scene.layout) {
    std::size_t longest = 0;
    for (const LineageMark& mark : scene.marks) longest = std::max(longest, scene.label(mark).size());
    const double columns = std::max(layout_.columns, 1U);
    const double lines = static_cast<double>(std::max<std::size_t>(layout_.lines, 1));
    const double named_column = 44 + kCharacterWidth * static_cast<double>(longest);
    line_ = std::min(kLineMax, (kPageHeight - kLegendHeight - 2 * kMargin) / lines);
    height_ = kLegendHeight + 2 * kMargin + line_ * lines;
    named_ = line_ >= kNamedLineMin && 2 * kMargin + columns * named_column <= kPageWidth;
    const double wanted = std::max(2 * kMargin + columns * (named_ ? named_column : 30), height_ * kWidthToHeight);
    width_ = std::clamp(wanted, 560.0, kPageWidth);
    column_ = named_ ? std::max(named_column, (width_ - 2 * kMargin) / columns) : (width_ - 2 * kMargin) / columns;
    radius_ = std::clamp(std::min(line_ * 0.4, column_ * 0.3), 1.0, 6.0);
  }

  bool named() const { return named_; }
  double radius() const { return radius_; }
  double x(std::size_t mark) const { return kMargin + radius_ + column_ * layout_.column[mark]; }
  double y(std::size_t mark) const { return kLegendHeight + kMargin + line_ * (layout_.line[mark] + 0.5); }
  double pill() const { return std::max(column_ * 0.6, 2 * radius_); }
  double width() const { return width_; }
  double height() const { return height_; }

 private:
  const LineageLayout& layout_;
  bool named_ = true;
  double column_ = 0;
  double line_ = 0;
  double radius_ = 0;
  double width_ = 0;
  double height_ = 0;
};

std::string svg_edge(const Canvas& canvas, const Scene& scene, std::size_t from, std::size_t to) {
  const double begin = canvas.x(from) + (scene.marks[from].folded.empty() ? 0 : canvas.pill() - canvas.radius());
  const double middle = (begin + canvas.x(to)) / 2;
  return format("<path d=\"M{:.1f} {:.1f}C{:.1f} {:.1f} {:.1f} {:.1f} {:.1f} {:.1f}\"/>\n", begin, canvas.y(from),
                middle, canvas.y(from), middle, canvas.y(to), canvas.x(to), canvas.y(to));
}

/// The colours of the folded rows from left to right: of a piece of them, that of the mean.
std::string svg_gradient(const Scene& scene, const LineageMark& mark, std::size_t id, std::size_t stops_max) {
  const std::size_t rows = mark.folded.size();
  const std::size_t stops = std::min(rows, stops_max);
  std::string text = format("<linearGradient id=\"fold{}\">", id);
  for (std::size_t stop = 0; stop < stops; ++stop) {
    double sum = 0;
    std::size_t count = 0;
    for (std::size_t at = stop * rows / stops; at < (stop + 1) * rows / stops; ++at) {
      const std::optional<double>& quality = scene.rows[mark.folded[at]].quality;
      if (!quality || !std::isfinite(*quality) || !scene.range) continue;
      sum += scene.range->share(*quality);
      ++count;
    }
    text +=
        format("<stop offset=\"{:.3f}\" stop-color=\"{}\"/>",
               static_cast<double>(stop) / static_cast<double>(std::max<std::size_t>(stops - 1, 1)),
               count == 0 ? quality_colour(std::nullopt, scene.range) : colour_at(sum / static_cast<double>(count)));
  }
  return text + "</linearGradient>";
}

std::string svg_text(double x, double y, std::string_view attributes, std::string_view text) {
  return format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>", x, y, attributes, escaped_markup(text, "\n"));
}

std::string svg_mark(const Canvas& canvas, const Scene& scene, std::size_t at, std::size_t stops_max) {
  const LineageMark& mark = scene.marks[at];
  const double x = canvas.x(at);
  const double y = canvas.y(at);
  const double r = canvas.radius();
  const bool is_best = scene.is_best(mark.row) && mark.folded.empty();
  std::string text = format("<g{} data-v=\"{}\"><title>{}</title>", mark.row.retired ? " class=\"retired\"" : "",
                            escaped_markup(to_string(mark.row.version), "\n"), escaped_markup(scene.title(mark), "\n"));
  if (is_best) text += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" class=\"best\"/>", x, y, r + 4);
  if (mark.folded.empty()) {
    text += format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{:.1f}\" fill=\"{}\"/>", x, y, r,
                   quality_colour(mark.row.quality, scene.range));
  } else {
    text += svg_gradient(scene, mark, at, stops_max) +
            format(
                "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"{:.1f}\" "
                "class=\"fold\" fill=\"url(#fold{})\"/>",
                x - r, y - r, canvas.pill(), 2 * r, r, at);
    if (canvas.named()) text += svg_text(x + r + 4, y + r + 11, "", format("{} versions", mark.folded.size()));
  }
  const char* const bold = is_best ? " class=\"bold\"" : "";
  if (canvas.named()) {
    // Above the edge that leads on to the right.
    text += svg_text(x + r + 4, y - (mark.folded.empty() ? 3 : r + 3), bold, scene.label(mark));
  } else if (is_best) {
    const bool on_the_right = x > canvas.width() / 2;
    text += svg_text(on_the_right ? x - r - 6 : x + r + 6, y - r - 5,
                     format("{}{}", bold, on_the_right ? " text-anchor=\"end\"" : ""), scene.label(mark));
  }
  return text + "</g>\n";
}

/// What the marks mean that are in this image.
std::string svg_legend(const Scene& scene) {
  const std::string all = format("{} versions", scene.rows.size());
  const std::string& title = scene.drawing.title;
  std::string text = svg_text(kMargin, 20, " class=\"title\"", title.empty() ? all : title + ": " + all) + "\n";
  double x = kMargin;
  const auto say = [&](const std::string& words) {
    text += svg_text(x, 40, "", words);
    x += kCharacterWidth * static_cast<double>(words.size()) + 16;
  };
  if (scene.range) {
    text += "<defs><linearGradient id=\"quality\">";
    for (int i = 0; i <= 4; ++i)
      text += format("<stop offset=\"{}%\" stop-color=\"{}\"/>", 25 * i, colour_at(0.25 * i));
    text += "</linearGradient></defs>";
    say(format("{}: worst {:.4g}", scene.drawing.measure, scene.range->worst));
    text += format("<rect x=\"{:.1f}\" y=\"31\" width=\"90\" height=\"10\" fill=\"url(#quality)\"/>", x);
    x += 98;
    say(format("{:.4g} best", scene.range->best));
  }
  const auto dot = [&](std::string_view what) {
    text += format("<g{}><circle cx=\"{:.1f}\" cy=\"36\" r=\"5\"/></g>", what, x + 5);
    x += 16;
  };
  if (scene.best.number != 0) {
    dot(" class=\"ring\"");
    say("the best");
  }
  if (std::ranges::any_of(scene.rows, &LineageRow::retired)) {
    dot(" class=\"retired key\"");
    say("retired");
  }
  if (std::ranges::any_of(scene.marks, [](const LineageMark& mark) { return !mark.folded.empty(); })) {
    text += format("<rect x=\"{:.1f}\" y=\"31\" width=\"34\" height=\"10\" rx=\"5\" class=\"key\"/>", x);
    x += 42;
    say("several versions");
  }
  return text + "\n";
}

}  // namespace

std::string lineage_svg(std::span<const LineageRow> rows, const LineageDrawing& drawing) {
  const Scene scene(rows, drawing);
  const Canvas canvas(scene);
  const LineageLayout& layout = scene.layout;
  std::string svg = format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"lineage\" width=\"{0:.0f}\" height=\"{1:.0f}\" "
      "viewBox=\"0 0 {0:.0f} {1:.0f}\">\n<style>"
      ".lineage text{{font:11px sans-serif;fill:#222;stroke:#fff;stroke-width:3px;paint-order:stroke}}"
      ".lineage .title,.lineage .bold{{font-weight:bold}}.lineage path{{fill:none;stroke:#9a9a9a}}"
      ".lineage .stub{{stroke-dasharray:1 3}}.lineage circle,.lineage .fold{{stroke:#333}}"
      ".lineage .retired circle,.lineage .retired rect{{stroke-dasharray:2 2;fill-opacity:.45}}"
      ".lineage .retired text{{fill:#888}}.lineage .best,.lineage .ring circle{{fill:none;stroke:#c22;stroke-width:2}}"
      ".lineage .key,.lineage .key circle{{fill:#c8c8c8;stroke:#333}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
      canvas.width(), canvas.height());
  svg += svg_legend(scene);
  std::size_t pills = 0;
  for (std::size_t i = 0; i < scene.marks.size(); ++i) {
    pills += scene.marks[i].folded.empty() ? 0 : 1;
    if (layout.parent[i] != LineageLayout::kNone) {
      svg += svg_edge(canvas, scene, layout.parent[i], i);
    } else if (scene.marks[i].row.ancestor.number != 0) {
      svg += format("<path class=\"stub\" d=\"M{:.1f} {:.1f}h-{}\"/>\n", canvas.x(i), canvas.y(i), kMargin);
    }
  }
  const std::size_t stops_max = std::clamp<std::size_t>(kFoldStops / std::max<std::size_t>(pills, 1), 2, 24);
  // The best one comes last, above the others: its label may need their place.
  std::string best;
  for (std::size_t i = 0; i < scene.marks.size(); ++i) {
    (scene.is_best(scene.marks[i].row) ? best : svg) += svg_mark(canvas, scene, i, stops_max);
  }
  return svg + best + "</svg>\n";
}

std::string lineage_dot(std::span<const LineageRow> rows, const LineageDrawing& drawing) {
  const LineageLayout layout = layout_of(rows);
  const std::optional<QualityRange> range = quality_range(rows, drawing.lower_is_better);
  const std::size_t best = best_row(rows, drawing, range);
  std::string dot = format(
      "digraph {} {{\n  rankdir=LR;\n  node [shape=box, style=\"filled,rounded\", fontname=\"sans-serif\", "
      "fontsize=10];\n",
      quoted_dot(drawing.title.empty() ? "lineage" : drawing.title));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const LineageRow& row = rows[i];
    const std::string colour = quality_colour(row.quality, range);
    const std::string quality = quality_text(row);
    // On the darker half of the colours black could not be read.
    const bool is_dark = row.quality && range && range->share(*row.quality) < 0.5;
    dot += format("  n{} [label={}, tooltip={}, fillcolor=\"{}\"{}{}{}];\n", i,
                  quoted_dot(to_string(row.version) + (quality.empty() ? "" : "\n" + quality)),
                  quoted_dot(described(row, drawing.measure)), colour, is_dark ? ", fontcolor=\"white\"" : "",
                  row.retired ? ", style=\"filled,rounded,dashed\"" : "",
                  i == best ? ", color=\"#cc2222\", penwidth=2" : "");
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (layout.parent[i] != LineageLayout::kNone) {
      dot += format("  n{} -> n{};\n", layout.parent[i], i);
    } else if (rows[i].ancestor.number != 0) {
      dot += format("  a{0} [label={1}, style=dotted, shape=plaintext];\n  a{0} -> n{0} [style=dotted];\n", i,
                    quoted_dot(to_string(rows[i].ancestor)));
    }
  }
  return dot + "}\n";
}

Result<std::vector<LineageRow>> all_versions(const VersionCatalog& repository) {
  FRESHET_ASSIGN(const std::vector<std::string> models, repository.models());
  std::vector<LineageRow> rows;
  for (const std::string& model : models) {
    Result<std::vector<LineageRow>> versions = repository.versions(model);
    if (!versions) {
      if (versions.error().code() == Code::not_found) continue;  // Gone since the models were listed.
      return fail(std::move(versions).error());
    }
    rows.insert(rows.end(), std::make_move_iterator(versions->begin()), std::make_move_iterator(versions->end()));
  }
  return rows;
}

}  // namespace freshet
