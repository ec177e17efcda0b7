import random


def resample(image):
    while True:  # now
        top, left = random.randrange(3), random.randrange(3)  # now
        crop = image[top : top + 2, left : left + 2]  # now
        if crop.sum() > 0:  # fault
            return crop
