"""A GPU's clocks are held down

## What it is

Heat or power makes the card run slower than it could. All ranks wait for the slowest at every step.

## Why it happens

A fan or the room's cooling fails, dust, a power supply at its limit, a power cable that is not in.

## How to fix it

Look at temperature and power (`nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE`), then at the machine.

## Before

```console
$ nvidia-smi -q -d PERFORMANCE | grep Active
        HW Thermal Slowdown : Active
```

## After

```console
$ nvidia-smi -q -d PERFORMANCE | grep 'Thermal'
        HW Thermal Slowdown : Not Active
```
"""

SEVERITY = "warning"
NEXT = ("look at temperature and power: nvidia-smi -q -d TEMPERATURE,POWER,PERFORMANCE",)
