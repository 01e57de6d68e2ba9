# Draws docs/schedules/*.svg from what `schedules --series FOLDER` wrote.
# usage: gnuplot -e "series='FOLDER'; out='docs/schedules'" plots.gp
if (!exists("series") || !exists("out")) { print "plots.gp: series and out must be given"; exit status 2 }
set encoding utf8
grey = "#b0b0b0"; blue = "#1f5fa8"; red = "#c0392b"; green = "#2e8b57"; orange = "#d98200"; black = "#222222"

curves = system("cd '".series."' && ls *.curve | grep -v ^synthetic_ | sed 's/.curve$//' | tr '\n' ' '")
made = system("cd '".series."' && ls *.curve | grep ^synthetic_ | sed 's/.curve$//' | tr '\n' ' '")

# Every learning curve: batches in grey, the held-out trend in blue.
set terminal svg size 1100,760 font "sans,10" background "white"
set output out."/curves.svg"
set multiplot layout 5,5 margins 0.04,0.99,0.03,0.97 spacing 0.035,0.05
set key off
set logscale y
set format y "%.2g"
set tics font ",7" scale 0.4
set xtics 2000
do for [name in curves.made] {
  set title name font ",9" offset 0,-0.8 noenhanced
  plot series."/".name.".curve" using 1:2 with lines lc rgb grey, '' using 1:3 with lines lc rgb blue lw 1.4
}
unset multiplot

# Where schedules publish: four cases, a lane for each schedule below the curve.
set output out."/publishes.svg"
set terminal svg size 1000,640 font "sans,11" background "white"
cases = "text_licences_dear wine_mlp_dear digits_diverge_dear text_overfit_dear"
set tics font ",9"
set multiplot layout 2,2 margins 0.09,0.985,0.06,0.95 spacing 0.09,0.1
do for [name in cases] {
  curve = series."/".system("echo ".name." | sed 's/_dear$//;s/_cheap$//'").".curve"
  set autoscale
  unset logscale
  stats curve using 3 nooutput
  set logscale y
  low = STATS_min; high = STATS_max
  set title system("echo ".name." | tr '\n' ' ' | sed 's/_\\([a-z]*\\) *$/, \\1/'") font ",12" offset 0,-0.6 noenhanced
  span = log(high / low)
  lane(k) = low * exp(-span * (0.12 + 0.09 * (5 - k)))
  set yrange [low * exp(-span * 0.58) : high * exp(span * 0.05)]
  unset ytics
  set ytics ("epoch" lane(1), "fixed" lane(2), "optimal" lane(3), "online" lane(4), "oracle" lane(5), \
             sprintf("%.2g", low) low, sprintf("%.2g", sqrt(low * high)) sqrt(low * high), sprintf("%.2g", high) high)
  plot curve using 1:2 with lines lc rgb grey, '' using 1:3 with lines lc rgb blue lw 1.6, \
       series."/".name.".publishes" using 2:(lane($1)) with points pt 2 ps 0.35 lc rgb black
}
unset multiplot
set autoscale y
unset title

# All cases: the share of them that is within so much of the oracle.
set output out."/ratios.svg"
set terminal svg size 760,420 font "sans,12" background "white"
set margins 9,3,4,1
set xlabel "cumulative loss above the oracle's"
set ylabel "share of the cases"
set logscale x
unset logscale y
set xrange [1e-4:2]
set yrange [0:1]
set ytics 0.25 font ",11"
set xtics ("0.01 %%" 1e-4, "0.1 %%" 1e-3, "1 %%" 1e-2, "10 %%" 1e-1, "100 %%" 1) font ",11"
set grid lc rgb "#e0e0e0"
set key bottom right
file = series."/ratios.tsv"
plot file using 2:1 with steps lw 1.5 lc rgb orange title "epoch", \
     file using 3:1 with steps lw 1.5 dt 2 lc rgb grey title "best interval in hindsight", \
     file using 4:1 with steps lw 1.5 lc rgb green title "fixed", \
     file using 5:1 with steps lw 1.5 lc rgb red title "greedy", \
     file using 6:1 with steps lw 1.5 lc rgb black title "optimal, on the prediction", \
     file using 7:1 with steps lw 2.5 lc rgb blue title "online"
