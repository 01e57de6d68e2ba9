// SPDX-License-Identifier: Apache-2.0
#pragma once

/// A family of learning curves: a formula of the iteration x >= 1 with a few parameters, and the facts that fit() needs
/// about the formula. Each family has a small file in this folder; CURVES.md lists the families with their sources. To
/// add your own family, derive from Curve and pass the object to CurveFamilies::add().
///
/// A formula describes the metric itself: a falling loss or a rising accuracy. So a factor such as a in a exp(-b x) + c
/// may be positive or negative.
///
/// Thread rule: families are immutable, and any thread may call every method. A method reads only its arguments. It
/// throws only if memory runs out.

#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace freshet {

/// The coordinate in which the fit moves a parameter. Rates and scales may vary over several powers of ten, so the fit
/// moves the logarithm of such a parameter. This parameter has 0 < lower.
enum class ParameterScale { linear, logarithmic };

struct CurveParameter {
  std::string name;
  double lower = -std::numeric_limits<double>::infinity();
  double upper = std::numeric_limits<double>::infinity();
  ParameterScale scale = ParameterScale::linear;
};

/// One observation, or the summary of several neighbours. All values are finite, x >= 1, and weight > 0 is the number
/// of rows that the point stands for. In a list of points x grows strictly.
struct CurvePoint {
  double x = 1;
  double y = 0;
  double weight = 1;
  double scatter = 0;  ///< Sum of squares of its rows around y; 0 for one row.
};

class Curve {
 public:
  virtual ~Curve() = default;

  /// Short, lower case, unique among the families of one fit ("exp3").
  virtual std::string_view name() const = 0;
  /// For people ("a exp(-b x) + c").
  virtual std::string_view formula() const = 0;
  /// In the order in which all other methods take them. At least one, at most kMaxParameters; lower < upper.
  virtual const std::vector<CurveParameter>& parameters() const = 0;

  /// REQUIRES: x >= 1, parameters.size() == parameters().size(), each within its bounds. The value may be infinite or
  /// NaN if it is no finite double; the fit then tries other parameters.
  virtual double value(double x, std::span<const double> parameters) const = 0;
  /// Derivatives of value() by the parameters; out.size() == parameters.size().
  virtual void gradient(double x, std::span<const double> parameters, std::span<double> out) const = 0;

  /// Guesses from which the fit starts, best first; the fit takes the first few. It moves values outside the bounds to
  /// the bounds. An empty list: the family cannot describe these points ("vapour" has only values above 0). REQUIRES:
  /// at least one point, as above, with spikes already moved to their neighbours.
  virtual std::vector<std::vector<double>> starts(std::span<const CurvePoint> points) const = 0;
};

inline constexpr std::size_t kMaxParameters = 16;

/// An ordered set of families with distinct names. A value; copies share the (immutable) families.
class CurveFamilies {
 public:
  /// Every family of this folder, the paper's four first.
  static CurveFamilies standard();
  /// The same without double curves: expd3 is exp3 with other parameters, and janoschek is weibull.
  static CurveFamilies distinct();
  /// Viper's four (section 4.3): exp2, exp3, lin2, expd3.
  static CurveFamilies viper();

  /// invalid_argument: the family's name is empty, or its parameters break the rules above. already_exists: the name
  /// is taken.
  Status add(std::shared_ptr<const Curve> family);
  /// The named families, in that order. The message of not_found names the first unknown name and lists the known ones.
  Result<CurveFamilies> subset(std::span<const std::string> names) const;

  /// Null if no family has this name.
  std::shared_ptr<const Curve> find(std::string_view name) const;
  const std::vector<std::shared_ptr<const Curve>>& list() const& { return list_; }
  std::vector<std::shared_ptr<const Curve>> list() && { return std::move(list_); }

 private:
  std::vector<std::shared_ptr<const Curve>> list_;
};

/// A curve with its parameters: a pure function of the iteration.
struct FittedCurve {
  std::shared_ptr<const Curve> family;
  std::vector<double> parameters;

  /// The metric at `iteration`; an iteration under 1 counts as 1.
  double operator()(double iteration) const { return family->value(iteration < 1 ? 1 : iteration, parameters); }
  std::string_view name() const { return family->name(); }
};

}  // namespace freshet
